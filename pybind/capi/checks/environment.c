/* Settings come from the environment as it is now, not as it was when the program began. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tent/transfer_engine.h"

/* Whether the settings of a new engine name a variable as an origin. */
static int named(const char *variable) {
	char *text = NULL, origin[64];
	tent_engine_t engine = tent_create_engine();
	if (engine == NULL || (text = tent_describe(engine, "config")) == NULL) {
		fprintf(stderr, "environment: %s\n", tent_last_error());
		exit(1);
	}
	snprintf(origin, sizeof origin, "\"environment %s\"", variable);
	int is = strstr(text, origin) != NULL;
	tent_free_text(text);
	tent_destroy_engine(engine);
	return is;
}

int main(void) {
	const char *conf = "{\"log_level\": \"error\"}";
	const char *names[][2] = {{"TENT_CONF", conf}, {"MC_TENT_CONF", conf}, {"TENT_FAULTS", "op=READ delay=1ms unused_ok"}};
	for (int i = 0; i < 3; i++) {
		const char *name = names[i][0];
		setenv(name, names[i][1], 1);
		int set = named(name);
		unsetenv(name);
		if (set && !named(name)) continue;
		fprintf(stderr, "environment: %s is %s\n", name, set ? "read after unsetenv" : "not read after setenv");
		return 1;
	}
	return 0;
}
