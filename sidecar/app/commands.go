package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"fenceline/internal/manifest"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark/filemark"
	"fenceline/sidecar/mark/pgmark"
	"fenceline/sidecar/policy"
)

// Init makes the mark file that a configuration names, and returns its path.
func Init(path string) (string, error) {
	cfg, err := config.LoadFile(path)
	if err != nil {
		return "", err
	}
	if cfg.Store.File.Path == "" {
		return "", errors.New("this configuration keeps its marks in PostgreSQL; sidecar migrate makes the tables")
	}
	return cfg.Store.File.Path, filemark.Create(cfg.Store.File.Path)
}

// CheckConnect asks the store whether it fits the configuration: reachable, durable, tables, columns and rights, and that every statement of the
// file can be prepared. It changes nothing. The error names everything that is wrong.
func CheckConnect(ctx context.Context, cfg *config.Config, w io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 2*startupTimeout)
	defer cancel()
	on, err := openBacking(ctx, cfg)
	if err != nil {
		return err
	}
	store, err := on.store(cfg)
	if err == nil {
		err = checkStore(ctx, cfg, store)
	}
	if err := errors.Join(err, on.close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "the store fits: %d guards\n", len(cfg.Guards))
	return err
}

func checkStore(ctx context.Context, cfg *config.Config, store checkedStore) error {
	errs := []error{store.Check(ctx)}
	database, ok := store.(*pgmark.Store)
	if !ok || errs[0] != nil && !isFinal(errs[0]) {
		return errs[0] // nothing else can be asked
	}
	for _, r := range cfg.Routes {
		if r.Key.Lookup != nil {
			errs = append(errs, named("route "+r.Name+": key.lookup", database.CheckStatement(ctx, r.Key.Lookup.Positional())))
		}
		if r.OnFenced != nil {
			errs = append(errs, named("route "+r.Name+": on_fenced", database.CheckStatement(ctx, r.OnFenced.Positional())))
		}
	}
	return errors.Join(errs...)
}

func named(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Reset is an operator's wish to set a mark, higher or lower.
type Reset struct {
	Guard, Key       string
	To, Expected     int64
	Operator, Reason string
}

// ResetMark sets a mark in a file that no sidecar has open, or in a database while no sidecar serves the guard.
func ResetMark(ctx context.Context, path string, r Reset, w io.Writer) error {
	cfg, err := config.LoadFile(path)
	if err != nil {
		return err
	}
	if cfg.Store.File.Path == "" {
		return resetInDatabase(ctx, path, r, w)
	}
	key, err := canonical(cfg, r.Guard, r.Key)
	if err != nil {
		return err
	}
	if strings.TrimSpace(r.Operator) == "" || strings.TrimSpace(r.Reason) == "" || r.To < 1 || r.Expected < 1 {
		return errors.New("want --operator, --reason, and tokens from 1 on")
	}
	file, err := filemark.Open(cfg.Store.File.Path, filemark.Options{})
	if err != nil {
		return err
	}
	change := filemark.Change{
		At: time.Now().UTC(), Guard: r.Guard, Key: key, From: lock.Token(r.Expected), To: lock.Token(r.To), Operator: r.Operator, Reason: r.Reason,
	}
	if err := errors.Join(file.Reset(change), file.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "guard %s, key %s: the mark is %d now, it was %d; recorded in the file with operator and reason\n", r.Guard, key, r.To, r.Expected)
	return err
}

// canonical gives a key's one spelling.
func canonical(cfg *config.Config, guard, key string) (string, error) {
	rules, err := policy.New(cfg)
	if err != nil {
		return "", err
	}
	routes := rules.Routes()
	i := slices.IndexFunc(routes, func(r *policy.Route) bool { return r.Guard != nil && r.Guard.Name == guard })
	if i < 0 {
		return "", fmt.Errorf("there is no guard %q in this configuration", guard)
	}
	return routes[i].Canonical(key)
}

// Manifest says what the sidecar is towards its own tables.
func Manifest() manifest.Manifest {
	return manifest.New("sidecar", pgmark.Contract(), pgmark.Statements())
}
