package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// PythonTypes renders tent/_settings.py: the types of all settings of a build, for completion in editors. Keys that
// are no identifiers come first, since only the functional form of a TypedDict can hold them.
func PythonTypes(o Options) string {
	c := newConfig(o)
	var paths, words strings.Builder
	branches := map[string]bool{}
	for i := range c.settings {
		s := &c.settings[i]
		kind := s.Takes.python()
		branch, _, below := strings.Cut(s.Key, "/")
		if s.Key == "name" {
			continue // a parameter of its own
		}
		if !below {
			fmt.Fprintf(&words, "    %s: %s\n", s.Key, kind)
			continue
		}
		fmt.Fprintf(&paths, "        %q: %s,\n", s.Key, kind)
		if !branches[branch] {
			branches[branch] = true
			fmt.Fprintf(&words, "    %s: Mapping[str, Any]\n", branch)
		}
	}
	return fmt.Sprintf(typedDict, paths.String(), words.String())
}

const typedDict = `from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

_Paths = TypedDict(
    "_Paths",
    {
%s    },
    total=False,
)


class Given(_Paths, total=False):
    """The settings of an Engine as people give them: keywords, or the keys of a dict."""

%s`

// python is the type of the values that t takes, in Python.
func (t Takes) python() string {
	switch t.Kind {
	case Bool:
		return "bool"
	case Int:
		if t.measured() {
			return "int | str"
		}
		return "int"
	case Float:
		if t.measured() {
			return "float | str"
		}
		return "float"
	case Text, Texts:
		text := "str"
		if t.Choices != nil {
			choices := append(slices.Clone(t.Choices), slices.Sorted(maps.Keys(t.Spellings))...)
			text = `Literal["` + strings.Join(choices, `", "`) + `"]`
		}
		if t.Kind == Texts {
			return "Sequence[" + text + "]"
		}
		return text
	case Floats:
		return "Sequence[float]"
	}
	if strings.HasPrefix(t.What, "a list") {
		return "Sequence[Any]"
	}
	return "Any"
}
