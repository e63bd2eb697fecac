package config

import (
	"cmp"
	"slices"
	"strings"
)

// synonyms maps words that people try onto those of known keys, before distances are measured. By letters alone
// "allowlist" is nearer to "blacklist" than to "whitelist".
var synonyms = strings.NewReplacer("allowlist", "whitelist", "denylist", "blacklist", "blocklist", "blacklist")

// nearestMax is the number of bytes of an unknown key that are compared. A text that stands where a key belongs, by
// mistake, may be long: its distance to each known key takes time by its length.
const nearestMax = 128

// nearest returns the known key most like an unknown one. A key at the wrong place of the tree is found too: the last
// part counts alone, at the price of one more edit for each level that differs. Between equals the whole text decides.
func (c *Config) nearest(key string) string {
	key = synonyms.Replace(strings.ToLower(key[:min(len(key), nearestMax)]))
	return slices.MinFunc(c.settings, func(a, b Setting) int {
		far, farOther := distance(key, a.Key), distance(key, b.Key)
		near := cmp.Compare(min(far, misplaced(key, a.Key)), min(farOther, misplaced(key, b.Key)))
		return cmp.Or(near, cmp.Compare(far, farOther))
	}).Key
}

// alike names the transports that have a setting like the nearest one of a key that names none of them.
func (c *Config) alike(key, near string) string {
	path, ofTransport := strings.CutPrefix(near, "transports/")
	if !ofTransport || strings.Contains(key, "/") {
		return ""
	}
	_, last, _ := strings.Cut(path, "/")
	var names []string
	for i := range c.settings {
		if path, is := strings.CutPrefix(c.settings[i].Key, "transports/"); is {
			if name, key, _ := strings.Cut(path, "/"); key == last {
				names = append(names, name)
			}
		}
	}
	if len(names) < 2 {
		return ""
	}
	return "; each of " + strings.Join(names, ", ") + " has one"
}

// misplaced is the distance when only the last parts are compared.
func misplaced(a, b string) int {
	groups, last := cut(a)
	others, otherLast := cut(b)
	for len(groups) > 0 && len(others) > 0 && groups[0] == others[0] {
		groups, others = groups[1:], others[1:]
	}
	for len(groups) > 0 && len(others) > 0 && groups[len(groups)-1] == others[len(others)-1] {
		groups, others = groups[:len(groups)-1], others[:len(others)-1]
	}
	return len(groups) + len(others) + 2*distance(last, otherLast)
}

// cut returns the groups of a key and its last part.
func cut(key string) (groups []string, last string) {
	parts := strings.Split(key, "/")
	return parts[:len(parts)-1], parts[len(parts)-1]
}

// distance is that of Damerau and Levenshtein, restricted: the least number of letters to insert, delete or change, and
// of neighbours to swap.
func distance(a, b string) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next[0] = i + 1
		for j := range len(b) {
			change := row[j]
			if a[i] != b[j] {
				change++
			}
			next[j+1] = min(change, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
