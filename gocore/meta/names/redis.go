package names

import (
	"context"
	"errors"
	"os"
	"strings"
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
	// swap and its like take the key, the value that must be there ("" for none), the new value, and milliseconds.
	swapScript = redis.NewScript(`
		if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
		redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
		return 1`)
	renewScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
		return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)
	removeScript = redis.NewScript(`
		if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
		return 1`)
)

// NewRedis returns the service at host:port, or at a URL as redis://host:port/1 or rediss://host:port for TLS. The
// password comes from a file, "" for none.
func NewRedis(address, passwordFile string) (*Redis, error) {
	options := &redis.Options{Addr: address}
	if strings.Contains(address, "://") {
		var err error
		if options, err = redis.ParseURL(address); err != nil || options.Password != "" {
			return nil, errs.New(errs.InvalidArgument, "metadata", "metadata_servers is not such as "+
				"redis://10.0.0.5:6379/0, without a password").WithHint("metadata_password_file names a file with it")
		}
	}
	if passwordFile != "" {
		password, err := os.ReadFile(passwordFile)
		if err != nil {
			return nil, errs.Wrap(errs.InvalidArgument, "metadata_password_file", err)
		}
		options.Password = strings.TrimSpace(string(password))
	}
	options.PoolSize, options.MaxRetries = 2, 1
	options.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &Redis{redis.NewClient(options), options.Addr}, nil
}

// Get implements Service.
func (r *Redis) Get(ctx context.Context, key string) ([]byte, error) {
	value, err := r.client.Get(ctx, key).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return value, err
}

// Swap implements Service.
func (r *Redis) Swap(ctx context.Context, key string, old, value []byte, lease time.Duration) (bool, error) {
	return is(swapScript.Run(ctx, r.client, []string{key}, old, value, lease.Milliseconds()))
}

// Renew implements Service.
func (r *Redis) Renew(ctx context.Context, key string, value []byte, lease time.Duration) (bool, error) {
	return is(renewScript.Run(ctx, r.client, []string{key}, value, lease.Milliseconds()))
}

// Remove implements Service.
func (r *Redis) Remove(ctx context.Context, key string, value []byte) error {
	return removeScript.Run(ctx, r.client, []string{key}, value).Err()
}

func is(answer *redis.Cmd) (bool, error) {
	n, err := answer.Int()
	return n == 1, err
}

// Close implements Service.
func (r *Redis) Close() error { return r.client.Close() }

// String implements Service.
func (r *Redis) String() string { return "Redis at " + r.address }
