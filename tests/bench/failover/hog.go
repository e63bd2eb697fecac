package main

import (
	"errors"
	"os/exec"
)

// hog starts programs that do nothing but use a core each; stop ends them.
func hog(n int) (stop func(), err error) {
	var list []*exec.Cmd
	for range n {
		c := exec.Command("/bin/sh", "-c", "while :; do :; done")
		if e := c.Start(); e != nil {
			err = errors.Join(err, e)
			continue
		}
		list = append(list, c)
	}
	return func() {
		for _, c := range list {
			_ = c.Process.Kill()
			_ = c.Wait() // says that it was killed
		}
	}, err
}
