package pybind

// InjectFaults adds the faults of a text in the language of transports/faulty to those of an engine, or heals. It is refused
// unless the engine was opened with allow_faults.
func InjectFaults(id int64, text string) (n int64, err error) {
	defer guard(&err)
	o, err := find(id)
	if err != nil {
		return 0, err
	}
	return 0, o.faults.Apply(text)
}

// Faults is what is injected into an engine now, in the language.
func Faults(id int64) (text string, err error) {
	defer guard(&err)
	o, err := find(id)
	if err != nil {
		return "", err
	}
	return o.faults.String(), nil
}
