package robustness

import (
	"errors"
	"net/url"
	"time"
)

// Postgres is lockdb at databaseURL, with its migrations applied. The URL's host is where the proxies connect to.
func Postgres(databaseURL string) (Backend, error) {
	parsed, err := url.Parse(databaseURL)
	if err != nil || parsed.Host == "" {
		return Backend{}, errors.New("want a URL such as postgres://user:password@host:5432/lockdb") // the text could hold a password
	}
	return Backend{
		Name: "pg", Address: parsed.Host,
		Args: func(string) []string { return nil },
		Env: func(address string) []string {
			through := *parsed
			through.Host = address
			return []string{"LOCKD_DATABASE_URL=" + through.String()}
		},
		ShortTTL: 150 * time.Millisecond, LongTTL: 2500 * time.Millisecond, SessionTTL: time.Second,
	}, nil
}

// Etcd is etcd's member at address (host:port). It grants whole seconds, two at least, and looks for leases whose time is over twice a second, on a
// busy machine less often; until it has found one, its keys are there.
func Etcd(address string) Backend {
	return Backend{
		Name: "etcd", Address: address,
		Args: func(address string) []string {
			return []string{"--backend", "etcd", "--etcd-endpoints", "http://" + address}
		},
		Env:      func(string) []string { return nil },
		ShortTTL: 2 * time.Second, LongTTL: 10 * time.Second, SessionTTL: 2 * time.Second, Late: 5 * time.Second,
	}
}
