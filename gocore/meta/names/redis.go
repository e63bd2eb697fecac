package names

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tent-engine/tent/gocore/errs"
)

// Redis is the service of a Redis server. Conditions are scripts, which Redis carries out as one step.
type Redis struct {
	client  *redis.Client
	address string
}

var _ Service = (*Redis)(nil)

var (
	// Each takes the key and the value that must be there. swapScript takes "" for none, and the new value behind it.
	// It says so on the channel of the key, for Watch. Leases are in milliseconds.
	swapScript = redis.NewScript(`
		if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
		redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
		redis.call('PUBLISH', KEYS[1], '')
		return 1`)
	renewScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)
	removeScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
		return 1`)
)

// silent takes the lines that the client would print to the program's standard error: each failure is an error as well.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

var silence = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

// NewRedis returns the service at host:port, or at a URL as redis://host:port/1 or rediss://host:port for TLS. Files of
// TLS make it TLS at any address. The password is read for each connection, since it may be replaced.
func NewRedis(address string, access Access) (*Redis, error) {
	silence()
	options := &redis.Options{Addr: address}
	if strings.Contains(address, "://") {
		var err error
		if options, err = redis.ParseURL(address); err != nil || options.Password != "" ||
			options.Username == "" && noUser(address) != nil {
			return nil, errs.New(errs.InvalidArgument, "metadata", "metadata_servers is not such as "+
				"redis://10.0.0.5:6379/0, without a password").WithHint("metadata_password_file names a file with it")
		}
	} else if err := noUser(address); err != nil {
		return nil, err
	}
	if access.hasTLS() || options.TLSConfig != nil {
		config, err := access.tls()
		if err != nil {
			return nil, err
		}
		if config.ServerName, _, err = net.SplitHostPort(options.Addr); err != nil {
			return nil, errs.New(errs.InvalidArgument, "metadata", "metadata_servers has no port: %v", err)
		}
		options.TLSConfig = config
	}
	user := cmp.Or(access.User, options.Username)
	switch password, err := access.password(); {
	case err != nil:
		return nil, err
	case user != "" && password == "":
		return nil, halfAccess("Redis") // the client would take the default user without a word
	case access.Password != "":
		options.CredentialsProviderContext = func(context.Context) (string, string, error) {
			password, err := access.password()
			return user, password, err
		}
	}
	options.PoolSize, options.MaxRetries, options.DialerRetries, options.ContextTimeoutEnabled = 2, 1, 1, true
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = limitMax, limitMax, limitMax
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	options.Dialer = bounded(redis.NewDialer(options))
	return &Redis{redis.NewClient(options), options.Addr}, nil
}

// limitMax is the longest limit of a question (metadata_timeout). The client has limits of its own, of 3 and 5 seconds
// unless told otherwise, and takes the shorter one.
const limitMax = time.Minute

// ask returns the answer to a question, and leaves it at the end of ctx: the client looks at the deadline alone. A
// question that was left ends by its deadline, or with Close.
func ask[T any](ctx context.Context, question func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := question()
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// run carries out a script, and reports whether it returned 1.
func (r *Redis) run(ctx context.Context, script *redis.Script, key string, arguments ...any) (bool, error) {
	return ask(ctx, func() (bool, error) {
		n, err := script.Run(ctx, r.client, []string{key}, arguments...).Int()
		return n == 1, err
	})
}

// Get implements Service.
func (r *Redis) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := ask(ctx, func() ([]byte, error) { return r.client.Get(ctx, key).Bytes() })
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return value, err
}

// Swap implements Service.
func (r *Redis) Swap(ctx context.Context, key string, old, value []byte, lease time.Duration) (bool, error) {
	return r.run(ctx, swapScript, key, old, value, lease.Milliseconds())
}

// Renew implements Service.
func (r *Redis) Renew(ctx context.Context, key string, value []byte, lease time.Duration) (bool, error) {
	return r.run(ctx, renewScript, key, value, lease.Milliseconds())
}

// Remove implements Service.
func (r *Redis) Remove(ctx context.Context, key string, value []byte) error {
	_, err := r.run(ctx, removeScript, key, value)
	return err
}

// Watch implements Service. Redis announces no change by itself, so the engine that swaps a value says so on a channel
// with the name of the key. The client subscribes again where the connection broke, which is a hint, too.
func (r *Redis) Watch(ctx context.Context, key string) <-chan struct{} {
	return hinted(ctx, func(ctx context.Context, hint func()) {
		client := r.within(ctx)
		subscription := client.Subscribe(ctx, key)
		defer func() { _, _ = subscription.Close(), client.Close() }() // nothing can be lost
		messages := subscription.ChannelWithSubscriptions()
		for {
			select {
			case <-ctx.Done():
				return
			case _, is := <-messages:
				if !is {
					return
				}
				hint()
			}
		}
	})
}

// within returns a client whose connections end with ctx. A subscription looks at no context when it connects again,
// and holds the lock that its Close needs until the server has answered.
func (r *Redis) within(ctx context.Context) *redis.Client {
	options := *r.client.Options()
	dial := options.Dialer
	options.Dialer = func(_ context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() })
		}
		return conn, err
	}
	return redis.NewClient(&options)
}

// Close implements Service.
func (r *Redis) Close() error { return r.client.Close() }

// String implements Service.
func (r *Redis) String() string { return "Redis at " + r.address }
