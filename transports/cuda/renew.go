package cuda

import (
	"context"

	"github.com/tent-engine/tent/gocore/errs"
	"github.com/tent-engine/tent/transports/host/access"
	"github.com/tent-engine/tent/transports/host/hazard"
)

// renew asks by another token for each region that is mapped: the owner has taken us for ended, and forgotten all
// holds. The rail is down until it knows them again. A region that it does not give any more is unmapped.
func (d *distant) renew(token access.Token) *errs.Error {
	for _, name := range d.names() {
		question := d.askAgain(token, name)
		if question == nil {
			continue
		}
		n, err := d.wordOn(name, question)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), access.RevokeLimit)
		slow := d.hear(ctx, n)
		cancel()
		if slow != nil {
			return errs.From("mnnvl.attach", slow)
		}
	}
	return nil
}

// askAgain makes the question for a region that is held still, so that its release comes with a later serial number.
func (d *distant) askAgain(token access.Token, name hazard.Region) (question []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.held[name]) == 0 {
		return nil
	}
	return d.askLocked(token, name)
}

// wordOn returns the owner's news of a region that we have mapped.
func (d *distant) wordOn(name hazard.Region, question []byte) (news, *errs.Error) {
	answer, err := d.call(question)
	if err == nil {
		o, bad := readOffer(answer)
		if bad != nil {
			return news{}, errs.From("mnnvl.attach", bad)
		}
		return news{name: name, floor: o.floor}, nil
	}
	switch err.Code {
	case errs.AddressNotRegistered, errs.PermissionDenied, errs.NotHere, errs.Replaced,
		errs.CudaError: // of the region's device, which has ended: the memory of others works
		return news{name: name, closed: true, replaced: err.Code == errs.Replaced}, nil
	case errs.Stale: // it has forgotten us once more: the next greeting begins anew
		err.Code = errs.Lost
	}
	return news{}, err
}
