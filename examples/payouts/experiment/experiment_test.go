package experiment

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// programs builds what the experiment runs, as a user would build it, into one folder.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"lockd", "sidecar", "paysvc"} {
		process.BuildInto(t, "fenceline/"+name, dir)
	}
	return dir
}

func newBench(t *testing.T) (context.Context, *Bench, *bytes.Buffer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	configs, err := filepath.Abs("../../../configs")
	require.NoError(t, err)
	var out bytes.Buffer
	b, err := NewBench(ctx, BenchOptions{Bin: programs(t), Configs: configs, Out: &out})
	require.NoError(t, err)
	t.Cleanup(func() {
		stopCtx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		require.NoError(t, b.Close(stopCtx, true))
	})
	return ctx, b, &out
}

// The whole claim on real processes, and its negative control: with the sidecars in the path but enforcing nothing, the experiment itself must
// say that it failed.
func TestExperiment(t *testing.T) {
	ctx, b, out := newBench(t)
	setups := Plain()

	bare, err := b.Run(ctx, setups[0])
	require.NoError(t, err)
	require.NoError(t, Judge(bare))
	require.Equal(t, "CORRUPTED", bare.Verdict())
	require.Equal(t, []string{"INV-02", "INV-03"}, bare.Invariants.Broken())
	require.Len(t, bare.Scenes[0].Truth.Transfers, 2, "A stopped before its submit: the rail paid twice")
	require.Len(t, bare.Scenes[1].Truth.Transfers, 1, "A stopped before its post: only the account is wrong")

	guarded, err := b.Run(ctx, setups[1])
	require.NoError(t, err)
	require.NoError(t, Judge(guarded))
	require.Equal(t, "HELD", guarded.Verdict())
	require.Equal(t, "rail", guarded.Scenes[0].Refusals[0].Guard)
	require.Equal(t, "account", guarded.Scenes[1].Refusals[0].Guard)

	require.NoError(t, guarded.Print(out))
	require.Contains(t, out.String(), "worker-a1 at guard rail: token")

	// The fenced system by itself: no sidecar, and the processes refuse.
	i := slices.IndexFunc(All(), func(s Setup) bool { return s.Name == "fenced" })
	fenced, err := b.Run(ctx, All()[i])
	require.NoError(t, err)
	require.NoError(t, Judge(fenced))
	require.Equal(t, "HELD", fenced.Verdict())
	require.NoError(t, PrintAll(out, []Result{fenced}))
	require.Contains(t, out.String(), "worker-a2 at guard account: token")
}

func TestExperimentFailsWhenTheSidecarsEnforceNothing(t *testing.T) {
	ctx, b, _ := newBench(t)
	result, err := b.Run(ctx, Setup{Name: "unenforced", Title: "plain with sidecars that enforce nothing", Sidecars: Both(), Unenforced: true})
	require.NoError(t, err)
	require.Equal(t, "CORRUPTED", result.Verdict())
	require.ErrorContains(t, Judge(result), "the guarded system is corrupted")
}

func TestOneServerIsNotEnough(t *testing.T) {
	t.Setenv("LOCKDB_URL", "postgres://x@127.0.0.1:1/x")
	t.Setenv("PAYDB_URL", "")
	_, err := NewBench(t.Context(), BenchOptions{Out: &bytes.Buffer{}})
	require.ErrorContains(t, err, "set both LOCKDB_URL and PAYDB_URL")

	server := pgtest.Server(t, nil)
	t.Setenv("LOCKDB_URL", server.URL("postgres"))
	t.Setenv("PAYDB_URL", server.URL("template1"))
	_, err = NewBench(t.Context(), BenchOptions{Out: &bytes.Buffer{}})
	require.ErrorContains(t, err, "name the same server")
}
