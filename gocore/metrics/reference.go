package metrics

// Description documents a family of series; docs/reference/metrics.md is generated from it.
type Description struct {
	Name, Kind, Help string
	Labels           []string
}

// Descriptions returns every family in the order in which Text prints them.
func Descriptions() []Description {
	list := make([]Description, len(families))
	for i, f := range families {
		list[i] = Description{f.name, kindNames[f.kind], f.help, f.labels}
	}
	return list
}

var kindNames = [...]string{counter: "counter", gauge: "gauge", histogram: "histogram"}
