package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
	"fenceline/sidecar/mark/pgmark"
)

// Settlement is an operator's word that requests can have no further effect: those of one life, or one.
type Settlement struct {
	Row              int64
	Life             string
	Operator, Reason string
}

// onDatabase runs an operator's work on the PostgreSQL store of a configuration, beside sidecars that may run.
func onDatabase(ctx context.Context, path string, do func(context.Context, *config.Config, *pgmark.Store) error) error {
	cfg, err := config.LoadFile(path)
	if err != nil {
		return err
	}
	if cfg.Store.File.Path != "" {
		return errors.New("this configuration keeps its marks in a file, which the running sidecar has open: ask its admin listener (GET /inflight, POST /inflight/ROW/settle)")
	}
	ctx, cancel := context.WithTimeout(ctx, 2*startupTimeout)
	defer cancel()
	on, err := openBacking(ctx, cfg)
	if err != nil {
		return err
	}
	store, err := on.store(cfg)
	if err == nil {
		err = do(ctx, cfg, store.(*pgmark.Store)) //nolint:forcetypeassert // there is no file
	}
	return errors.Join(err, on.close())
}

// Settle removes unsettled requests from the register on an operator's word.
func Settle(ctx context.Context, path string, s Settlement, w io.Writer) error {
	if (s.Row == 0) == (s.Life == "") {
		return errors.New("want either --row or --life; sidecar inflight lists them")
	}
	return onDatabase(ctx, path, func(ctx context.Context, _ *config.Config, store *pgmark.Store) error {
		n := 0
		var err error
		if s.Life != "" {
			n, err = store.SettleLife(ctx, s.Life, s.Operator, s.Reason)
		} else {
			var found bool
			if found, err = store.SettleUnsettled(ctx, mark.Row(s.Row), s.Operator, s.Reason); found {
				n = 1
			}
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("nothing was settled: there is no such request, or its outcome isn't called unknown yet (it is under way, or its sidecar counts as alive)")
		}
		_, err = fmt.Fprintf(w, "%d settled; recorded with operator and reason in fence.settlement\n", n)
		return err
	})
}

// maxList bounds a listing.
const maxList = 1000

// InFlight lists the requests in flight behind all sidecars on the store, the oldest first.
func InFlight(ctx context.Context, path string, w io.Writer) error {
	return onDatabase(ctx, path, func(ctx context.Context, cfg *config.Config, store *pgmark.Store) error {
		list, err := store.Standing(ctx, "", maxList)
		if err != nil {
			return err
		}
		const line = "%-8v  %-12s  %-38s  %-8v  %-36s  %-14s  %-20s  %s\n"
		fmt.Fprintf(w, line, "ROW", "GUARD", "KEY", "TOKEN", "LIFE", "SIDECAR", "ADMITTED", "UNSETTLED SINCE")
		for _, s := range list {
			since := "-"
			if !s.UnsettledAt.IsZero() {
				since = s.UnsettledAt.UTC().Format("2006-01-02T15:04:05Z")
			}
			fmt.Fprintf(w, line, s.Row, s.Guard, s.Key, s.Token, s.Life, s.Sidecar, s.AdmittedAt.UTC().Format("2006-01-02T15:04:05Z"), since)
		}
		if slices.ContainsFunc(cfg.Guards, config.Guard.Exclusive) {
			fmt.Fprintln(w, "Guards with ownership: exclusive keep theirs in their sidecar's memory: ask its admin listener (GET /inflight, POST /inflight/ROW/settle)")
		}
		_, err = fmt.Fprintf(w, "%d in flight\n", len(list))
		return err
	})
}

// resetInDatabase sets a mark while no sidecar serves the guard.
func resetInDatabase(ctx context.Context, path string, r Reset, w io.Writer) error {
	return onDatabase(ctx, path, func(ctx context.Context, cfg *config.Config, store *pgmark.Store) error {
		key, err := canonical(cfg, r.Guard, r.Key)
		if err != nil {
			return err
		}
		if strings.TrimSpace(r.Operator) == "" || strings.TrimSpace(r.Reason) == "" || r.To < 1 || r.Expected < 1 {
			return errors.New("want --operator, --reason, and tokens from 1 on")
		}
		if err := store.ResetMark(ctx, r.Guard, key, lock.Token(r.To), lock.Token(r.Expected), r.Operator, r.Reason); err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "guard %s, key %s: the mark is %d now, it was %d; recorded with operator and reason in fence.settlement\n", r.Guard, key, r.To, r.Expected)
		return err
	})
}
