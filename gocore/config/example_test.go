package config_test

import (
	"fmt"
	"strings"

	"github.com/tent-engine/tent/gocore/config"
)

// Settings is a transport's branch, declared by tags.
type Settings struct {
	config.Rail
	Lanes int `key:"lanes" takes:"1..16" default:"4" help:"Connections of a rail."`
}

func ExampleLoad() {
	o := config.Options{Transports: []config.Transport{{Name: "pigeons", Settings: Settings{}}}}
	c, err := config.Load(o, `{"transports": {"pigeons": {"lanes": 2}}}`, map[string]any{"name": "decode-0"})
	fmt.Println(c.Engine.Name, c.SettingsOf("pigeons").(*Settings).Lanes, c.RailOf("pigeons").ErrorThreshold, err)

	_, err = config.Load(o, `{"transports": {"pigeons": {"lane": 2}}}`)
	fmt.Println(strings.ReplaceAll(err.Error(), "; ", ";\n"))
	// Output:
	// decode-0 2 3 <nil>
	// config: argument: unknown setting "transports/pigeons/lane";
	// the nearest known setting is "transports/pigeons/lanes", which takes an integer from 1 to 16
}
