package engine

import (
	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/transport"
)

// Plugs are transports with the settings of the tree.
func Plugs(factories ...transport.Factory) []Plug {
	list := make([]Plug, len(factories))
	for i := range factories {
		list[i].Factory = factories[i]
	}
	return list
}

// tableOf makes the table of names of an engine that was given no settings.
func tableOf(plugs []Plug) []config.Transport {
	list := make([]config.Transport, len(plugs))
	for i, plug := range plugs {
		list[i] = config.Transport{Name: plug.Factory.Name(), Settings: config.Rail{}}
		if c, is := plug.Factory.(transport.Configured); is {
			list[i].Settings = c.Settings()
		}
	}
	return list
}

// settings returns the settings for a transport's Open.
func (e *Engine) settings(plug Plug) any {
	if plug.Settings != nil {
		return plug.Settings
	}
	return e.config.SettingsOf(plug.Factory.Name())
}
