package transporttest

// RuleNames are the rules of the suite, for the test that there is a broken transport for each.
func RuleNames() (names []string) {
	for _, r := range rules() {
		names = append(names, r.name)
	}
	return names
}
