// Railctl lays rails in the guest and breaks them, for shells and for tests in Python: package roce by its names.
//
//	railctl lay 4                       four rails
//	railctl make silent 0               rail 0 loses every packet
//	railctl mend silent 0
//	railctl faults                      the names
package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/tent-engine/tent/tests/roce"
)

const usage = "usage: railctl lay NUMBER | make FAULT RAIL | mend FAULT RAIL | faults"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "railctl:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "faults":
		for _, f := range roce.Faults() {
			fmt.Println(f.Name)
		}
		return nil
	case len(args) == 2 && args[0] == "lay":
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		return roce.Lay(n)
	case len(args) == 3 && (args[0] == "make" || args[0] == "mend"):
		return change(args[0] == "make", args[1], args[2])
	}
	return fmt.Errorf("%s", usage)
}

func change(begin bool, name, rail string) error {
	faults := roce.Faults()
	i := slices.IndexFunc(faults, func(f roce.Fault) bool { return f.Name == name })
	if i < 0 {
		return fmt.Errorf("no fault is called %q: `railctl faults` lists them", name)
	}
	n, err := strconv.Atoi(rail)
	if err != nil || !slices.Contains(roce.Rails(), roce.Rail(n)) {
		return fmt.Errorf("no rail %q here: there are %d", rail, len(roce.Rails()))
	}
	if begin {
		return faults[i].Make(roce.Rail(n))
	}
	return faults[i].Mend(roce.Rail(n))
}
