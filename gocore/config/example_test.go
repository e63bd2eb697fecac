package config_test

import (
	"fmt"

	"github.com/tent-engine/tent/gocore/config"
)

func ExampleLoad() {
	o := config.Options{Built: []string{"tcp"}}
	c, err := config.Load(o, `{"transports": {"tcp": {"lanes": 2}}}`, map[string]any{"name": "decode-0"})
	fmt.Println(c.Engine.Name, c.TCP.Lanes, c.TCP.Addresses, err)

	_, err = config.Load(o, `{"transports": {"tcp": {"lane": 2}}}`)
	fmt.Println(err)
	// Output:
	// decode-0 2 [127.0.0.1] <nil>
	// config: argument: unknown setting "transports/tcp/lane"; the nearest known setting is "transports/tcp/lanes", which takes an integer from 0 to 64
}
