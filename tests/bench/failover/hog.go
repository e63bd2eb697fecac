package main

import (
	"errors"
	"os"
	"os/exec"
)

// hog starts programs that do nothing but use a core each; stop ends them.
func hog(n int) (stop func() error) {
	var list []*exec.Cmd
	var failed error
	for range n {
		c := exec.Command("/bin/sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		list = append(list, c)
	}
	return func() error {
		for _, c := range list {
			failed = errors.Join(failed, c.Process.Signal(os.Kill))
			_ = c.Wait() // says that it was killed
		}
		return failed
	}
}
