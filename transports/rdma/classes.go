package rdma

import (
	"encoding/json"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/kit"
)

// lanePlan says which queue pairs of a rail carry which class, and with which service level and traffic class.
//
//	no pools            | HIGH: the first third of num_lanes | MEDIUM and LOW: the others |   from three lanes on
//	a pool named "high" | HIGH: the pool | MEDIUM and LOW: num_lanes                      |
//	one for each class  | HIGH: its pool | MEDIUM: its pool   | LOW: its pool             |
type lanePlan struct {
	lanes []marks // of packets, by lane
	of    [kit.Classes]group
}

// group is a range of lanes.
type group struct{ first, count int }

// marks keep packets of classes apart in switches and gateways.
type marks struct{ level, traffic uint8 }

// pool is an entry of qp_pools.
type pool struct {
	Name    string `json:"name"`
	Pairs   int    `json:"num_qp"`
	Level   *int   `json:"service_level"`
	Traffic *int   `json:"traffic_class"`
}

// classNames are the names of pools, by class.
var classNames = map[string]int{"high": 0, "medium": 1, "low": 2}

// lanesMost bounds the lanes of a rail: an answer to connect names each.
const lanesMost = 64

// plan shares the lanes of a rail out. It also returns the names of pools that are no class's.
func (s *Settings) plan() (p lanePlan, unknown []string, err error) {
	plain := marks{uint8(s.ServiceLevel), uint8(s.TrafficClass)}
	for _, each := range s.pools() {
		class, known := classNames[each.Name]
		switch {
		case !known:
			unknown = append(unknown, each.Name)
			continue
		case p.of[class].count > 0:
			return p, nil, errs.New(errs.InvalidArgument, "rdma.settings", "qp_pools has two pools %q", each.Name)
		}
		own := plain
		if each.Level != nil && *each.Level >= 0 {
			own.level = uint8(*each.Level)
		}
		if each.Traffic != nil && *each.Traffic >= 0 {
			own.traffic = uint8(*each.Traffic)
		}
		p.of[class] = p.add(each.Pairs, own)
	}
	p.share(s.Lanes, plain)
	if len(p.lanes) > lanesMost {
		return p, nil, errs.New(errs.InvalidArgument, "rdma.settings", "%d queue pairs of a rail, of %d at most",
			len(p.lanes), lanesMost).WithHint("lower num_qp of transports/rdma/endpoint/qp_pools, or num_lanes")
	}
	return p, unknown, nil
}

// pools reads qp_pools, which the settings have checked.
func (s *Settings) pools() (list []pool) {
	text, err := json.Marshal(s.Pools)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil
	}
	return list
}

func (p *lanePlan) add(count int, m marks) group {
	g := group{len(p.lanes), count}
	for range count {
		p.lanes = append(p.lanes, m)
	}
	return g
}

// share gives lanes to the classes that have none.
func (p *lanePlan) share(count int, m marks) {
	var without []int
	for class, g := range p.of {
		if g.count == 0 {
			without = append(without, class)
		}
	}
	if len(without) == 0 {
		return
	}
	rest := p.add(count, m)
	for _, class := range without {
		p.of[class] = rest
	}
	if high := count / 3; len(without) == kit.Classes && high > 0 {
		p.of[0] = group{rest.first, high}
		for class := 1; class < kit.Classes; class++ {
			p.of[class] = group{rest.first + high, count - high}
		}
	}
}
