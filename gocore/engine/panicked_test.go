package engine

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// A panic of the core ends the process, also where its caller recovers, as tcp's workers and calls from Python do. The
// text names tent, the place for reports, and the line of the panic.
func TestAPanicOfTheCoreEndsTheProcess(t *testing.T) {
	const variable = "TENT_TEST_PANIC"
	broken := map[string]func(e *Engine){
		"in a step": func(e *Engine) {
			e.mu.Lock()
			e.core = nil
			e.step()
		},
		"in a call": func(e *Engine) {
			defer func() { e.EndIfStuck(recover()) }()
			e.mu.Lock()
			e.core = nil
			_, _ = e.core.Status(1, 0)
		},
	}
	if broken := broken[os.Getenv(variable)]; broken != nil {
		e, err := Open(context.Background(), Options{})
		require.NoError(t, err)
		func() {
			defer func() { _ = recover() }()
			broken(e)
		}()
		return // it lives
	}
	for name := range broken {
		child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		child.Env = append(os.Environ(), variable+"="+name)
		text, err := child.CombinedOutput()
		require.Error(t, err, "%s: the process goes on:\n%s", name, text)
		for _, part := range []string{"tent unreleased: a defect", "nil pointer", issues, "panicked_test.go"} {
			require.Contains(t, string(text), part, name)
		}
	}
}

// A panic that left nothing locked is the error of its call alone.
func TestAnEngineThatIsNotStuckGoesOn(t *testing.T) {
	e, err := Open(context.Background(), Options{})
	require.NoError(t, err)
	defer e.Close(0, true)
	e.EndIfStuck("nothing")
	e.inbox.notice(notice{kind: noticeAnswered, peer: 1})
	e.EndIfStuck("nothing")
	require.False(t, e.stepDue(), "work that came while it held the mutex is done")
}
