package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tent-engine/tent/gocore/mem"
)

// kinds are the words of tags and of inert.txt for values that a range or choices do not describe. Unknown keys inside
// a structure fail as they do in the tree.
var kinds = map[string]Takes{
	"port":     {Kind: Int, Min: 0, Max: 65535, Numeric: true},
	"anything": {Kind: Structure, What: "anything"},
	"mtu":      {Kind: Int, Min: 512, Max: 4096, What: "512, 1024, 2048 or 4096", Check: checkMTU},
	"shared memory name": {Kind: Text, What: `"" or a name of shared memory, as in "/mooncake_rdma_slots"`,
		Check: checkSharedName},
	"log level": {Kind: Text, Choices: []string{"debug", "info", "warning", "error", "off"},
		Spellings: map[string]string{"warn": "warning", "trace": "debug", "critical": "error"}},
	"folders": {Kind: Texts, What: "a list of absolute paths of folders", Check: checkFolders},
	"plug-ins": {Kind: Texts, What: "a list of absolute paths of plug-ins and their folders",
		Check: checkFolders},
	"folder": {Kind: Text, What: `"" or the absolute path of a folder`, Check: checkFolder},
	"name":   {Kind: Text, What: "a name", Check: checkNamed},
	"short text": {Kind: Text, What: fmt.Sprintf("a text of at most %d bytes", shortMax),
		Check: checkShort},
	"addresses": {Kind: Texts, What: `a list of IP addresses of this machine, as in ["10.0.0.5", "fd00::5"]`,
		Check: checkAddresses},
	"endpoint": {Kind: Text, What: `"" or a place to listen, as in "127.0.0.1:9400", "[::1]:9400" or "9400"`,
		Check: checkEndpoint},
	"factors": {Kind: Floats, Min: 0.001, Max: 1e6, What: "three numbers from 0.001 to 1000000, as in [1, 5, 10]",
		Check: checkFactors},
	"file":  {Kind: Text, What: `"" or the path of a file`, Path: true},
	"users": {Kind: Texts, What: `a list of users, by name or number, or ["any"]`},
	"identities": {Kind: Texts,
		What: `a list of identities, as in ["spiffe://prod/prefill/*", "dns:*.decode.svc"], or ["*"]`},
	"policies": policyTakes,
	"pools":    poolsTakes,
	"qos":      qosTakes,
	"matrix": {Kind: Structure, What: `NIC names by location, as in {"cpu:0": [["mlx5_0"], ["mlx5_1"]]}`,
		Check: checkMatrix},
}

const (
	tebibyte = 1 << 40
	shortMax = 255 // bytes of a name, as peers take them (control, segment)
)

// Short forms for the fields of structures.
var (
	boolean = Takes{Kind: Bool}
	text    = Takes{Kind: Text}
	texts   = Takes{Kind: Texts}

	className  = Takes{Kind: Structure, What: "0, 1, 2, high, medium or low", Check: checkName(classes[:])}
	intentName = Takes{Kind: Structure, What: "an intent's name or number from 0 to 6", Check: checkName(intents[:])}
	memoryKind = Takes{Kind: Text, Choices: []string{"cpu", "cuda", "rocm", "npu", "tpu", "*"},
		Spellings: map[string]string{"hip": "rocm"}} // kindOfMemory reads both

	policyTakes = listOf("a list of policies", map[string]Takes{
		"name": text, "segment_type": oneOf("memory", "file"), "same_machine": boolean,
		"local_memory": memoryKind, "remote_memory": memoryKind,
		"min_size": size(tebibyte), "max_size": size(tebibyte),
		"priority": className, "intent_type": intentName, "transports": texts, "devices": texts,
		"qp_pool": text, "service_level": integer(0, 15), "traffic_class": integer(0, 255),
	}, "segment_type")
	poolsTakes = listOf("a list of queue pair pools", map[string]Takes{
		"name": text, "num_qp": integer(1, 1024), "service_level": integer(-1, 15), "traffic_class": integer(-1, 255),
	}, "name", "num_qp")

	contract = object("a contract", map[string]Takes{
		"priority": className, "max_inflight_bytes": size(1 << 62), "max_inflight_requests": integer(1, 1<<24),
		"allowed_degraded_actions": {Kind: Texts, Choices: []string{"delay", "fallback_transport", "local_recompute",
			"compress", "reject"}},
	})
	qosTakes = object("a QoS contract of version 1", map[string]Takes{
		"version": integer(1, 1), "defaults": contract,
		"tenants": listOf("a list of tenants", map[string]Takes{
			"name": text, "defaults": contract,
			"intents": {Kind: Structure, What: "contracts by intent", Check: eachValue(intentName, contract)},
		}, "name"),
	}, "version")
)

// classes and intents are upstream's names; their index is their number.
var (
	classes = [...]string{"high", "medium", "low"}
	intents = [...]string{
		"unspec", "foreground_get", "background_prefetch", "migration", "checkpoint", "weight_loading",
		"staging_internal",
	}
)

func integer(least, most float64) Takes { return Takes{Kind: Int, Min: least, Max: most} }
func size(most float64) Takes           { return Takes{Kind: Int, Max: most, Unit: "B"} }
func oneOf(choices ...string) Takes     { return Takes{Kind: Text, Choices: choices} }

// object takes a JSON object with known keys; required ones must be there.
func object(what string, fields map[string]Takes, required ...string) Takes {
	return Takes{Kind: Structure, What: what, Check: func(v any) error {
		return checkObject(v, fields, required)
	}}
}

// listOf takes a list of such objects.
func listOf(what string, fields map[string]Takes, required ...string) Takes {
	return Takes{Kind: Structure, What: what, Check: func(v any) error {
		list, ok := v.([]any)
		if !ok {
			return fmt.Errorf("%s is not a list", show(v))
		}
		for i, e := range list {
			if err := checkObject(e, fields, required); err != nil {
				return fmt.Errorf("entry %d: %w", i, err)
			}
		}
		return nil
	}}
}

func checkObject(v any, fields map[string]Takes, required []string) error {
	given, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is not an object", show(v))
	}
	for _, name := range required {
		if given[name] == nil {
			return fmt.Errorf("%q is missing", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		takes, known := fields[name]
		if !known {
			return fmt.Errorf("unknown key %s; known are %s", show(name),
				strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
		}
		if _, err := takes.convert(given[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// eachValue checks an object with data for keys.
func eachValue(keys, values Takes) func(any) error {
	return func(v any) error {
		given, ok := v.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is not an object", show(v))
		}
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if _, err := keys.convert(name); err != nil {
				return err
			}
			if _, err := values.convert(given[name]); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	}
}

func checkMTU(v any) error {
	if n := v.(int64); n&(n-1) != 0 {
		return fmt.Errorf("%d is not an MTU", n)
	}
	return nil
}

// checkName takes one of names in any case, or its index.
func checkName(names []string) func(any) error {
	return func(v any) error { _, err := numberOf(v, names); return err }
}

// numberOf returns the index of a name in any case, or of its index.
func numberOf(v any, names []string) (int, error) {
	if s, ok := v.(string); ok {
		if i := slices.Index(names, strings.ToLower(s)); i >= 0 {
			return i, nil
		}
	}
	if n, ok := toInt(v); ok && n >= 0 && n < int64(len(names)) {
		return int(n), nil
	}
	return 0, fmt.Errorf("%s is none of them", show(v))
}

func checkMatrix(v any) error {
	given, ok := v.(map[string]any)
	if !ok {
		return fmt.Errorf("%s is not an object", show(v))
	}
	for _, location := range slices.Sorted(maps.Keys(given)) {
		if _, _, err := mem.Location(location).Parse(); err != nil {
			return err
		}
		ranks, ok := given[location].([]any)
		if !ok || len(ranks) != 2 {
			return fmt.Errorf("%s needs two lists, preferred and available", location)
		}
		for _, names := range ranks {
			if _, err := texts.convert(names); err != nil {
				return errors.Join(fmt.Errorf("%s: a list of NIC names is malformed", location), err)
			}
		}
	}
	return nil
}

func checkFactors(v any) error {
	if n := len(v.([]float64)); n != 3 {
		return fmt.Errorf("it has %d numbers", n)
	}
	return nil
}

// checkFolders takes absolute paths. Whether they exist is seen when a file is opened: a mount may come later.
func checkFolders(v any) error {
	for _, text := range v.([]string) {
		if !path.IsAbs(text) {
			return fmt.Errorf("%s is not an absolute path", show(text))
		}
	}
	return nil
}

func checkFolder(v any) error {
	if text := v.(string); text != "" && !path.IsAbs(text) {
		return fmt.Errorf("%s is not an absolute path", show(text))
	}
	return nil
}

// checkEndpoint takes host:port, or a port alone.
func checkEndpoint(v any) error {
	text := v.(string)
	if text == "" {
		return nil
	}
	port := text
	if strings.Contains(text, ":") {
		var err error
		if _, port, err = net.SplitHostPort(text); err != nil {
			return fmt.Errorf("%s is not host:port", show(text))
		}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%s is not a port from 0 to 65535", show(port))
	}
	return nil
}

func checkNamed(v any) error {
	if v == "" {
		return errors.New("the name is empty")
	}
	return nil
}

// checkShort takes texts that peers take.
func checkShort(v any) error {
	switch text := v.(string); {
	case len(text) > shortMax:
		return fmt.Errorf("%s has %d bytes", show(text), len(text))
	case !utf8.ValidString(text):
		return fmt.Errorf("%s is not UTF-8", show(text))
	}
	return nil
}

// checkSharedName takes the names that shm_open takes: one without a slash but the first one.
func checkSharedName(v any) error {
	name := strings.TrimPrefix(v.(string), "/")
	switch {
	case v == "":
		return nil
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255:
		return fmt.Errorf("%s is no name of shared memory", show(v))
	}
	return nil
}

// checkAddresses takes IP addresses, each once; a link-local one with its zone.
func checkAddresses(v any) error {
	seen := map[netip.Addr]bool{}
	for _, text := range v.([]string) {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return fmt.Errorf("%s is not an IP address", show(text))
		case a.IsUnspecified() || a.IsMulticast():
			return fmt.Errorf("%q is not the address of one interface", text)
		case seen[a]:
			return fmt.Errorf("%q is listed twice", text)
		}
		seen[a] = true
	}
	return nil
}
