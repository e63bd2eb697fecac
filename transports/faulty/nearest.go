package faulty

import "math"

// nearest is the word with the fewest changes from name.
func nearest(name string) string {
	best, least := "", math.MaxInt
	for candidate := range words {
		if d := distance(name, candidate); d < least || d == least && candidate < best {
			best, least = candidate, d
		}
	}
	return best
}

// distance is Levenshtein's with swapped neighbours as one change; a long word counts as its first 64 bytes.
func distance(a, b string) int {
	a = a[:min(len(a), 64)]
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j-1]+cost, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
