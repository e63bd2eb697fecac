package config

import (
	_ "embed" // of variables.txt
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed variables.txt
var variablesText string

// variable is a variable of the environment that stands for one key.
type variable struct {
	name, key string
	read      func(text string) any // nil where it leaves the key alone
	weak      bool                  // MC_TENT_CONF wins over it
}

// ofUpstream lists the variables of variables.txt. A line that cannot be read is a programmer's mistake that any Read
// finds.
var ofUpstream = sync.OnceValue(func() (list []variable) {
	for number, line := range strings.Split(variablesText, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		columns := strings.Split(line, " | ")
		weak := len(columns) == 4 && columns[3] == "weak"
		if !weak && len(columns) != 3 || readers[columns[1]] == nil {
			panic(fmt.Sprintf("config: variables.txt:%d cannot be read", number+1))
		}
		list = append(list, variable{columns[0], columns[2], readers[columns[1]], weak})
	}
	return list
})

// readers are the kinds of variables.txt. A text that is no such value goes on as it is, and the key refuses it.
var readers = map[string]func(text string) any{
	"text": func(text string) any { return text },
	"texts": func(text string) any {
		list := []any{}
		for _, item := range strings.Split(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		return list
	},
	"int": func(text string) any {
		switch n, err := strconv.ParseInt(text, 10, 64); {
		case err != nil:
			return text
		case n == -1:
			return nil
		default:
			return n
		}
	},
	"bool": func(text string) any {
		if yes, is := truth(text); is {
			return yes
		}
		return text
	},
	"= true":  func(text string) any { return unlessOff(text, true) },
	"= false": func(text string) any { return unlessOff(text, false) },
}

// truth reads the words that upstream takes for true and false.
func truth(text string) (yes, is bool) {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "on":
		return true, true
	case "false", "0", "no", "off":
		return false, true
	}
	return false, false
}

func unlessOff(text string, value bool) any {
	if on, is := truth(text); is && !on {
		return nil
	}
	return value
}

// layersOfUpstream reads the variables that stand for one key (decision 0188), each as a layer of its own. So a value
// that the key refuses is an error that names its variable.
func layersOfUpstream(env func(name string) string, weak bool) (layers []layer) {
	for _, v := range ofUpstream() {
		text := strings.TrimSpace(env(v.name))
		if text == "" || v.weak != weak {
			continue
		}
		if value := v.read(text); value != nil {
			layers = append(layers, layer{"environment " + v.name, map[string]any{v.key: value}})
		}
	}
	return layers
}

// Variables lists the names of the variables that Read looks at.
func Variables() []string {
	list := []string{faultsVariable}
	list = append(list, variables[:]...)
	for _, v := range ofUpstream() {
		if !slices.Contains(list, v.name) {
			list = append(list, v.name)
		}
	}
	return list
}

// VariablesMarkdown renders the variables of upstream and their keys for the documentation.
func VariablesMarkdown() string {
	var b strings.Builder
	b.WriteString("| variable | key |\n|---|---|\n")
	for _, v := range ofUpstream() {
		fmt.Fprintf(&b, "| `%s` | `%s` |\n", v.name, v.key)
	}
	return b.String()
}
