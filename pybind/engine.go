package pybind

import (
	"context"
	"encoding/base64"
	"encoding/json"

	"github.com/tent-engine/tent/gocore/config"
	"github.com/tent-engine/tent/gocore/engine"
	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/gocore/event"
	"github.com/tent-engine/tent/gocore/mem"
	"github.com/tent-engine/tent/gocore/request"
	"github.com/tent-engine/tent/transports/all"
)

// Open starts an engine with the settings of environment, arguments and keywords, and returns its number. Arguments and
// keywords are JSON text, "" for none; later ones win, key by key. environment is a JSON object of the variables that
// the program has now, "" for none: os.Getenv knows those of its start alone. Their values are in base64, since a path
// need not be UTF-8.
func Open(environment string, arguments string, keywords string, name string) (id int64, err error) {
	defer guard(&err)
	var given []any
	for _, text := range []string{arguments, keywords} {
		if text != "" {
			given = append(given, []byte(text))
		}
	}
	if name != "" {
		given = append(given, map[string]any{"name": name})
	}
	sources, paths, err := sourcesOf(environment, given...)
	if err != nil {
		return 0, err
	}
	plugIns := all.PlugIns(paths)
	c, err := sources.Load(all.Transports(plugIns...))
	if err != nil {
		return 0, err
	}
	faults, err := all.FaultsOf(c)
	if err != nil {
		return 0, err
	}
	e, err := engine.Open(context.Background(), engine.Options{Config: c, Platforms: all.Platforms(paths...),
		Transports: engine.Plugs(faults.Into(all.Factories(plugIns...))...), Dial: faults.Dial()})
	if err != nil {
		return 0, err
	}
	return add(e, faults), nil
}

// sourcesOf reads the settings of Open, and the paths of the plug-ins that they name.
func sourcesOf(environment string, given ...any) (s config.Sources, paths []string, err error) {
	env, err := environmentOf(environment)
	if err != nil {
		return s, nil, err
	}
	if s, err = config.Read(env, given...); err != nil {
		return s, nil, err
	}
	paths, err = s.PlugIns()
	return s, paths, err
}

// environmentOf reads the variables of Open.
func environmentOf(text string) (func(string) string, error) {
	var values map[string][]byte
	if text != "" {
		if err := json.Unmarshal([]byte(text), &values); err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "environment", err)
		}
	}
	variables := make(map[string]string, len(values))
	for name, value := range values {
		variables[name] = string(value)
	}
	return engine.EnvironmentOf(variables), nil
}

// Info returns in JSON the facts that stay the same while the engine lives.
func Info(id int64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		type setting struct {
			Key    string `json:"key"`
			Value  any    `json:"value"`
			Origin string `json:"origin"`
			Active bool   `json:"active"`
			Why    string `json:"why"`
			Takes  string `json:"takes"`
			Help   string `json:"help"`
		}
		var settings []setting
		for _, s := range e.Config().Dump() {
			settings = append(settings, setting{s.Key, s.Value, s.Origin, s.Active, s.Why, s.Takes, s.Help})
		}
		address, size := e.Page()
		numbers := map[string]uint8{} // of hints
		for _, name := range e.Transports() {
			numbers[name] = e.Config().NumberOf(name)
		}
		var events []string
		for _, kind := range event.Kinds() {
			events = append(events, kind.String())
		}
		return toJSON(map[string]any{"address": e.Address(), "name": e.Name(), "id": e.Self().ID.String(),
			"port": e.Port(), "page_address": uint64(address), "page_bytes": size, "event_fd": e.EventFd(),
			"note_fd": e.NoteFd(), "config": settings, "events": events, "numbers": numbers, "platforms": e.Platforms(),
			"default_priority": e.Config().Engine.DefaultPriority}), nil
	})
}

// Close ends an engine: JSON {"held": [...]} names the memory that could not be taken back. A later call waits for the
// first one and returns the same. The page stays there until Forget.
func Close(id int64, timeoutMs int64, cancel bool) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		held := e.Close(ms(timeoutMs), cancel)
		if held == nil {
			held = []string{}
		}
		return toJSON(map[string]any{"held": held}), nil
	})
}

// Refuse lets no batch take a call any more: later submits fail as those of a closed engine do. The page shows all
// others.
func Refuse(id int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		e.Refuse()
		return 0, nil
	})
}

// Forget gives up the page of a closed engine and drops its number. Nobody may look at the page's address afterwards. A
// second time does nothing. Memory of Allocate that is left stays for FreeMemory.
func Forget(id int64) (n int64, err error) {
	defer guard(&err)
	return 0, remove(id)
}

// accessOf reads the rights of peers to memory, and the peers that have them.
func accessOf(op string, permission int64, peers string) (mem.Permission, []string, error) {
	if permission < 0 || permission > 2 {
		return 0, nil, errs.New(errs.InvalidArgument, op, "permission %d is not 0, 1 or 2", permission)
	}
	to, err := listOf("peers", peers)
	return mem.Permission(permission), to, err
}

// Register registers memory and returns its region's id. Peers are patterns of identities as a JSON list, "" for all.
func Register(
	id int64, address, size uint64, readOnly, growable bool, name, location string, permission int64, peers string,
) (uint64, error) {
	return on(id, func(e *engine.Engine) (uint64, error) {
		allowed, to, err := accessOf("register", permission, peers)
		if err != nil {
			return 0, err
		}
		r, err := e.Register(engine.Memory{Addr: uintptr(address), Size: size, ReadOnly: readOnly, Growable: growable,
			Name: name, Location: mem.Location(location), Permission: allowed, Peers: to})
		return uint64(r), err
	})
}

// Allocate maps and registers zeroed memory: JSON {"id","address","size","location"}.
func Allocate(
	id int64, size uint64, name, location string, permission int64, prefault, hugepages bool, peers string,
) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		allowed, to, err := accessOf("allocate", permission, peers)
		if err != nil {
			return "", err
		}
		region, memory, err := e.Allocate(engine.Memory{Size: size, Name: name, Location: mem.Location(location),
			Permission: allowed, Prefault: prefault, HugePages: hugepages, Peers: to})
		if err != nil {
			return "", err
		}
		return toJSON(map[string]any{"id": uint64(region), "address": uint64(memory.Addr), "size": memory.Size,
			"location": memory.Location}), nil
	})
}

// CloseRegion ends remote access and returns when no peer can touch the bytes any more. It returns 1 when a driver or
// the kernel still may: its memory must stay where it is.
func CloseRegion(id int64, region uint64, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		err := e.CloseRegion(ctx, mem.RegionID(region))
		return one(e.Lingers(mem.RegionID(region))), err
	})
}

// FreeMemory unmaps memory of Allocate; its region is closed, nobody looks at it. It works on a closed engine too, and
// on one that was forgotten.
func FreeMemory(id int64, region uint64) (n int64, err error) {
	defer guard(&err)
	return 0, freeMemory(id, mem.RegionID(region))
}

// EndMemory closes a region of Allocate and unmaps it. Those of an engine that was forgotten are closed already.
func EndMemory(id int64, region uint64, timeoutMs int64) (n int64, err error) {
	defer guard(&err)
	if e, err := get(id); err == nil {
		ctx, cancel := limited(timeoutMs)
		defer cancel()
		if err := e.CloseRegion(ctx, mem.RegionID(region)); err != nil {
			return 0, err
		}
	}
	return 0, freeMemory(id, mem.RegionID(region))
}

// FenceRegion returns when nothing that the peer began before can touch the region. An address, an ID or a pattern of
// identities names it, or several; "" is all.
func FenceRegion(id int64, region uint64, peer string, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		return 0, e.FenceRegion(ctx, mem.RegionID(region), peer)
	})
}

// RemapRegion returns when peers reach the pages that are behind a range now, and nothing of before touches it.
func RemapRegion(id int64, region, offset, length uint64, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		return 0, e.RemapRegion(ctx, mem.RegionID(region), offset, length)
	})
}

// RegionStanding returns in JSON the place of an open region, and its state on each transport that moves its memory.
func RegionStanding(id int64, region uint64) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		standing, err := e.Standing(mem.RegionID(region))
		if err != nil {
			return "", err
		}
		return toJSON(standing), nil
	})
}

// OpenSegment opens "host:port", "host:port/region" or "file:///path"; "" is segment 0, our own memory. Another opens
// other engines alone, wait also those that start within the limit. Identities are those that the peer may have, as a
// JSON list, "" for any.
func OpenSegment(id int64, target, identities string, another, wait bool, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		wanted, err := listOf("identity", identities)
		if err != nil {
			return 0, err
		}
		s, err := e.OpenWith(ctx, target, engine.OpenOptions{Identities: wanted, Another: another, Wait: wait})
		return int64(s), err
	})
}

// OpenFiles opens files of this machine, all or none. It takes and returns JSON: a list of their absolute paths, flags
// and sizes; and a list of them as Segment describes each, with its number. Flags: 1 create, 2 truncate, 4 read only, 8
// durable, 16 cached.
func OpenFiles(id int64, text string, timeoutMs int64) (string, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (string, error) {
		var given []struct {
			Path  string `json:"path"`
			Flags int64  `json:"flags"`
			Size  uint64 `json:"size"`
		}
		if err := json.Unmarshal([]byte(text), &given); err != nil {
			return "", errs.Wrap(errs.InvalidArgument, "open", err)
		}
		targets := make([]engine.FileTarget, len(given))
		for i, f := range given {
			targets[i] = engine.FileTarget{Path: f.Path, FileOptions: engine.FileOptions{Create: f.Flags&1 != 0,
				Truncate: f.Flags&2 != 0, ReadOnly: f.Flags&4 != 0, Cached: f.Flags&16 != 0,
				Durability: request.Durability(f.Flags >> 3 & 1), Size: f.Size}}
		}
		opened, err := e.OpenFiles(ctx, targets)
		if err != nil {
			return "", err
		}
		described := make([]map[string]any, len(opened))
		for i, s := range opened {
			if described[i], err = describedSegment(ctx, e, s, false); err != nil {
				e.CloseSegments(opened)
				return "", err
			}
			described[i]["segment"] = s
		}
		return toJSON(described), nil
	})
}

// OpenBlob opens a blob that Export of a peer has made.
func OpenBlob(id int64, address uint64, size int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		if size < 0 || size > 1<<30 {
			return 0, errs.New(errs.InvalidArgument, "open", "a blob of %d bytes is not one of tent's", size)
		}
		s, err := e.OpenBlob(append([]byte(nil), mem.Bytes(uintptr(address), int(size))...))
		return int64(s), err
	})
}

// Segment describes an open segment in JSON; refresh asks the peer first.
func Segment(id int64, segment int64, refresh bool) (string, error) {
	return within(id, 10000, func(ctx context.Context, e *engine.Engine) (string, error) {
		described, err := describedSegment(ctx, e, engine.SegmentID(segment), refresh)
		if err != nil {
			return "", err
		}
		return toJSON(described), nil
	})
}

func describedSegment(ctx context.Context, e *engine.Engine, segment engine.SegmentID, refresh bool) (
	map[string]any, error) {
	info, err := e.Segment(ctx, segment, refresh)
	if err != nil {
		return nil, err
	}
	regions := make([]map[string]any, 0, len(info.Regions))
	for i := range info.Regions {
		regions = append(regions, fieldsOf(&info.Regions[i]))
	}
	return map[string]any{"address": info.Peer.Address, "name": info.Peer.Name, "machine_id": info.Peer.MachineID,
		"id": info.Peer.ID.String(), "identity": info.Peer.Identity, "region": info.Base, "regions": regions,
		"file": info.File}, nil
}

// CloseSegment closes a segment; closing 0 does nothing.
func CloseSegment(id int64, segment int64) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		return 0, e.CloseSegment(engine.SegmentID(segment))
	})
}

// CloseSegments closes segments by their numbers, a list in JSON.
func CloseSegments(id int64, segments string) (int64, error) {
	return on(id, func(e *engine.Engine) (int64, error) {
		var ids []engine.SegmentID
		if err := json.Unmarshal([]byte(segments), &ids); err != nil {
			return 0, errs.Wrap(errs.InvalidArgument, "close", err)
		}
		e.CloseSegments(ids)
		return 0, nil
	})
}

// Alive is 1 when the peer answers in its incarnation.
func Alive(id int64, segment int64, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		alive, err := e.Alive(ctx, engine.SegmentID(segment))
		return one(alive), err
	})
}

// Connect makes a segment ready for its first transfer.
func Connect(id int64, segment int64, timeoutMs int64) (int64, error) {
	return within(id, timeoutMs, func(ctx context.Context, e *engine.Engine) (int64, error) {
		return 0, e.Connect(ctx, engine.SegmentID(segment))
	})
}

// Export returns a blob in base64; names is a JSON list or null for all named regions.
func Export(id int64, names string) (string, error) {
	return on(id, func(e *engine.Engine) (string, error) {
		var list []string
		if err := json.Unmarshal([]byte(names), &list); err != nil {
			return "", errs.Wrap(errs.InvalidArgument, "export", err)
		}
		blob, err := e.Export(list)
		return base64.StdEncoding.EncodeToString(blob), err
	})
}
