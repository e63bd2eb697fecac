package config

import (
	"fmt"
	"strings"

	"github.com/tent-engine/tent/gocore/errs"
)

// tree is a set of keys with their values and their origins.
type tree struct {
	settings []Setting
	index    map[string]int // of settings, by key
	values   []any          // of settings: canonical, see Kind
	origins  []string       // of settings: "default", "environment TENT_CONF=...", "argument"
}

// newTree makes a tree of defaults. Of several declarations of a key the first counts.
func newTree(all []Setting) tree {
	t := tree{index: make(map[string]int, len(all))}
	for _, s := range all {
		if _, declared := t.index[s.Key]; declared {
			continue
		}
		t.index[s.Key] = len(t.settings)
		t.settings = append(t.settings, s)
		t.values = append(t.values, s.Default)
		origin := OriginDefault
		if s.Computed != "" {
			origin += " (" + s.Computed + ")"
		}
		t.origins = append(t.origins, origin)
	}
	return t
}

// isDefault reports whether nobody gave a value.
func isDefault(origin string) bool { return strings.HasPrefix(origin, OriginDefault) }

// value returns the canonical value of a key, nil for one that there is not.
func (t *tree) value(key string) any {
	if i, ok := t.index[key]; ok {
		return t.values[i]
	}
	return nil
}

// settle brings keys into agreement that bound one another: a value that nobody gave follows one that somebody gave.
func (t *tree) settle() error {
	for i := range t.settings {
		for _, key := range t.settings[i].atMost {
			if err := t.bound(i, t.index[key]); err != nil {
				return err
			}
		}
	}
	return t.unite()
}

// bound wants a value to be at most another one.
func (t *tree) bound(low, high int) error {
	a, _ := toFloat(t.values[low])
	b, _ := toFloat(t.values[high])
	switch {
	case a <= b:
	case isDefault(t.origins[low]):
		t.values[low] = t.settings[low].Takes.atMost(t.values[high])
		t.origins[low] = OriginDefault + " (at most " + t.settings[high].Key + ")"
	case isDefault(t.origins[high]):
		t.values[high] = t.values[low]
		t.origins[high] = OriginDefault + " (at least " + t.settings[low].Key + ")"
	default:
		return errs.New(errs.InvalidArgument, "config", "%s, more than %s", t.described(low), t.described(high))
	}
	return nil
}

// described returns a key with its value, as errors show it.
func (t *tree) described(i int) string {
	unit := t.settings[i].Takes.Unit
	return strings.TrimSpace(fmt.Sprintf("%s is %v %s", t.settings[i].Key, t.values[i], unit)) + " (" + t.origins[i] +
		")"
}

// unite gives older names of a key its value. Names that were given must agree.
func (t *tree) unite() error {
	for i := range t.settings {
		same := t.settings[i].same
		if same == "" {
			continue
		}
		first := t.index[same]
		switch {
		case isDefault(t.origins[i]):
		case isDefault(t.origins[first]):
			t.values[first], t.origins[first] = t.values[i], t.origins[i]
		case t.values[i] != t.values[first]:
			return errs.New(errs.InvalidArgument, "config", "%s, but %s", t.described(i), t.described(first)).
				WithHint("set only %s", same)
		}
	}
	for i := range t.settings {
		if same := t.settings[i].same; same != "" {
			t.values[i] = t.values[t.index[same]]
		}
	}
	return nil
}
