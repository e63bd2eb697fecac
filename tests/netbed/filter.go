package netbed

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// rule is the treatment of packets that come in at a port.
type rule []expr.Any

var (
	dropAll  = rule{&expr.Verdict{Kind: expr.VerdictDrop}}
	resetTCP = rule{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Reject{Type: unix.NFT_REJECT_TCP_RST},
	}
)

// dropLonger drops packets of more than this number of bytes, headers included.
func dropLonger(bytes uint32) rule {
	return rule{
		&expr.Meta{Key: expr.MetaKeyLEN, Register: 1},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpGt, Register: 1, Data: binaryutil.BigEndian.PutUint32(bytes)},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// dropShare drops packets at random.
func dropShare(share float64) rule {
	const grain = 1 << 20
	return rule{
		&expr.Numgen{Register: 1, Modulus: grain, Type: unix.NFT_NG_RANDOM},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
		&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binaryutil.BigEndian.PutUint32(uint32(share * grain))},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}
}

// table of a port: one for each, replaced as a whole.
func table(port string) *nftables.Table {
	return &nftables.Table{Name: "f" + port, Family: nftables.TableFamilyNetdev}
}

// filter puts a rule at ports that have none.
func (n *namespace) filter(ports []string, r rule) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(n.fd)))
	if err != nil {
		return err
	}
	for _, port := range ports {
		t := c.AddTable(table(port))
		chain := c.AddChain(&nftables.Chain{Name: "in", Table: t, Type: nftables.ChainTypeFilter,
			Hooknum:  nftables.ChainHookIngress,
			Priority: nftables.ChainPriorityFilter, Device: port})
		c.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	return nil
}

// unfilter takes the rules of ports away.
func (n *namespace) unfilter(ports []string) error {
	c, err := nftables.New(nftables.WithNetNSFd(int(n.fd)))
	if err != nil {
		return err
	}
	have, err := c.ListTablesOfFamily(nftables.TableFamilyNetdev)
	if err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	for _, t := range have {
		for _, port := range ports {
			if t.Name == "f"+port {
				c.DelTable(t)
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	return nil
}
