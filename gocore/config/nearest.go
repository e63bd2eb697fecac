package config

import "strings"

// synonyms maps words that people try onto those of known keys, before distances are measured. By letters alone
// "allowlist" is nearer to "blacklist" than to "whitelist".
var synonyms = strings.NewReplacer("allowlist", "whitelist", "denylist", "blacklist", "blocklist", "blacklist")

// nearest returns the known key most like an unknown one. A key at the wrong place of the tree is found too: the last
// part counts alone, at the price of one more edit for each level that differs.
func (c *Config) nearest(key string) string {
	key = synonyms.Replace(strings.ToLower(key))
	best, bestDistance := c.settings[0].Key, 1<<30
	for _, s := range c.settings {
		d := min(distance(key, s.Key), misplaced(key, s.Key))
		if d < bestDistance {
			best, bestDistance = s.Key, d
		}
	}
	return best
}

// misplaced is the distance when only the last parts are compared.
func misplaced(a, b string) int {
	parts, others := strings.Split(a, "/"), strings.Split(b, "/")
	common := 0
	for common < min(len(parts), len(others))-1 && parts[common] == others[common] {
		common++
	}
	moved := len(parts) + len(others) - 2 - 2*common
	return moved + 2*distance(parts[len(parts)-1], others[len(others)-1])
}

// distance is Levenshtein's: the least number of letters to insert, delete or change.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
