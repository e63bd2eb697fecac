package config

import (
	_ "embed" // of inert.txt
	"fmt"
	"reflect"
	"strings"
	"sync"
)

//go:embed inert.txt
var inertText string

// inert lists the keys of inert.txt. A line that cannot be read is a programmer's mistake that any Load finds.
var inert = sync.OnceValue(func() (list []Setting) {
	for number, line := range strings.Split(inertText, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		settings, err := parseInert(strings.Split(line, " | "))
		if err != nil {
			panic(fmt.Sprintf("config: inert.txt:%d: %v", number+1, err))
		}
		list = append(list, settings...)
	}
	return list
})

// inertKinds are the kinds of inert.txt that are not names of kinds with a meaning of their own.
var inertKinds = map[string]Kind{
	"bool": Bool, "int": Int, "float": Float, "text": Text, "texts": Texts, "floats": Floats,
}

// parseInert reads the columns of a line: key, kind, takes, unit, default, help.
func parseInert(columns []string) ([]Setting, error) {
	if branch, all := strings.CutSuffix(columns[0], "/*"); all {
		var list []Setting
		for _, f := range fieldsOf(reflect.TypeFor[Rail](), branch) {
			list = append(list, f.Setting)
		}
		return list, nil
	}
	if len(columns) != 6 {
		return nil, fmt.Errorf("%d columns, not 6", len(columns))
	}
	s := Setting{Key: columns[0], Source: "upstream", Help: columns[5]}
	words := columns[2]
	kind, plain := inertKinds[columns[1]]
	if !plain {
		words = columns[1]
	}
	var err error
	if s.Takes, err = parseTakes(kind, words, columns[3]); err != nil {
		return nil, err
	}
	if same, is := strings.CutPrefix(columns[4], "= "); is {
		s.same = same
		return []Setting{s}, nil
	}
	s.Default, err = s.Takes.parseDefault(columns[4])
	return []Setting{s}, err
}
