package transport

// Surveyor is a Factory that can describe its findings on this machine: interfaces, devices, features of the kernel.
type Surveyor interface {
	// Survey returns the findings for people, one a line. It is called only where Check returned nil, and leaves
	// nothing behind.
	Survey() []string
}

// Examiner is a Factory that looks at the parts of the machine on which its transport's speed and reach depend.
type Examiner interface {
	// Examine returns them. It is called as Survey is.
	Examine() []Part
}

// Part is one of them, for people.
type Part struct {
	Name    string   // "addresses of mlx5_0"
	Found   []string // a line each
	Reason  string   // why it is not as it should be; "" when it is
	Matters string   // the cost of that, and the cure
}
