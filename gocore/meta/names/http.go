package names

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/tent-engine/tent/gocore/errs"
)

// HTTP is the service of Mooncake's metadata server: GET, PUT and DELETE of ?key=, with the value as the body. A GET or
// DELETE of a key without a value is a 404. It knows neither leases nor conditions, so each value carries the time of
// its end by the clock of its writer, and two engines that publish one name at the same moment may both believe to have
// it. The next renewal finds the other one.
type HTTP struct {
	client *http.Client
	base   url.URL
	access Access
	now    func() time.Time
}

// leased is a value with its end.
type leased struct {
	Ends  time.Time       `json:"ends"` // of the lease
	Value json.RawMessage `json:"value"`
}

var _ Service = (*HTTP)(nil)

// httpInterval is the time between two looks of one that waits for a name.
const httpInterval = 250 * time.Millisecond

// redirectsMax bounds the redirections of one GET.
const redirectsMax = 5

// NewHTTP returns the service at an address such as http://10.0.0.5:8080/metadata. A user is named to it by basic
// authentication, with the password as the file has it at that moment.
func NewHTTP(address string, access Access) (*HTTP, error) {
	if err := noUser(address); err != nil {
		return nil, err
	}
	base, err := url.Parse(address)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, errs.New(errs.InvalidArgument, "metadata", "%q is not the URL of a metadata server",
			errs.Printable(address, nameMax)).WithHint("metadata_servers is such as http://10.0.0.5:8080/metadata")
	}
	transport := &http.Transport{MaxIdleConns: 2, IdleConnTimeout: time.Minute}
	if access.hasTLS() && base.Scheme == "http" {
		return nil, errs.New(errs.InvalidArgument, "metadata",
			"metadata_servers begins with http://, and files of TLS are named").
			WithHint("make it https://, or leave out metadata_tls_*")
	}
	if transport.TLSClientConfig, err = access.tls(); err != nil {
		return nil, err
	}
	if _, err := access.password(); err != nil {
		return nil, err
	}
	if access.User == "" && access.Password != "" {
		return nil, halfAccess("a metadata server")
	}
	client := &http.Client{Transport: transport, CheckRedirect: onlyGet}
	return &HTTP{client: client, base: *base, access: access, now: time.Now}, nil
}

// onlyGet follows redirections of a GET. Another request that is redirected would become a GET, and its answer would be
// taken for that of a PUT. From TLS none leads into the clear: the password would go along.
func onlyGet(next *http.Request, via []*http.Request) error {
	if via[0].Method != http.MethodGet || len(via) >= redirectsMax ||
		via[0].URL.Scheme == "https" && next.URL.Scheme != "https" {
		return http.ErrUseLastResponse
	}
	return nil
}

// do carries out a request and returns the status and the body.
func (h *HTTP) do(ctx context.Context, method, key string, body []byte) (int, []byte, error) {
	to := h.base
	query := to.Query() // of the address
	query.Set("key", key)
	to.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if h.access.User != "" {
		password, err := h.access.password()
		if err != nil {
			return 0, nil, err
		}
		request.SetBasicAuth(h.access.User, password)
	}
	answer, err := h.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 2*recordMax))
	absent := answer.StatusCode == http.StatusNotFound && method != http.MethodPut
	if err == nil && answer.StatusCode != http.StatusOK && !absent {
		err = fmt.Errorf("%s: %s", answer.Status, errs.Printable(string(text), nameMax))
	}
	return answer.StatusCode, text, err
}

// Get implements Service.
func (h *HTTP) Get(ctx context.Context, key string) ([]byte, error) {
	status, text, err := h.do(ctx, http.MethodGet, key, nil)
	if err != nil || status == http.StatusNotFound {
		return nil, err
	}
	var l leased
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, fmt.Errorf("the value of %q is malformed: %w", key, err)
	}
	if h.now().After(l.Ends) {
		return nil, nil
	}
	return l.Value, nil
}

// Swap implements Service.
func (h *HTTP) Swap(ctx context.Context, key string, old, value []byte, lease time.Duration) (bool, error) {
	now, err := h.Get(ctx, key)
	if err != nil || !bytes.Equal(now, old) {
		return false, err
	}
	body, err := json.Marshal(leased{h.now().Add(lease), value})
	if err != nil {
		return false, err
	}
	_, _, err = h.do(ctx, http.MethodPut, key, body)
	return err == nil, err
}

// Renew implements Service.
func (h *HTTP) Renew(ctx context.Context, key string, value []byte, lease time.Duration) (bool, error) {
	return h.Swap(ctx, key, value, value, lease)
}

// Remove implements Service.
func (h *HTTP) Remove(ctx context.Context, key string, value []byte) error {
	now, err := h.Get(ctx, key)
	if err != nil || !bytes.Equal(now, value) {
		return err
	}
	_, _, err = h.do(ctx, http.MethodDelete, key, nil)
	return err
}

// Watch implements Service. The protocol has no call for it, so this is a hint at regular times.
func (h *HTTP) Watch(ctx context.Context, _ string) <-chan struct{} {
	return hinted(ctx, func(ctx context.Context, hint func()) {
		ticker := time.NewTicker(httpInterval)
		defer ticker.Stop()
		for {
			hint()
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
}

// Close implements Service.
func (h *HTTP) Close() error {
	h.client.CloseIdleConnections()
	return nil
}

// String implements Service.
func (h *HTTP) String() string { return "the metadata server at " + h.base.Host }
