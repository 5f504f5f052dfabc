package pgserver

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

func writeArchive(t *testing.T, files map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.tgz")
	file, err := os.Create(path)
	require.NoError(t, err)
	zipped := gzip.NewWriter(file)
	writer := tar.NewWriter(zipped)
	for name, content := range files {
		require.NoError(t, writer.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}))
		_, err := writer.Write([]byte(content))
		require.NoError(t, err)
	}
	require.NoError(t, writer.Close())
	require.NoError(t, zipped.Close())
	require.NoError(t, file.Close())
	return path
}

func TestArchiveCannotLeadOutsideItsFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	archive := writeArchive(t, map[string]string{"../outside": "x"})
	require.ErrorContains(t, unpack(archive, dir), "outside")
	_, err := os.Stat(filepath.Join(filepath.Dir(dir), "outside"))
	require.ErrorIs(t, err, os.ErrNotExist)

	require.NoError(t, unpack(writeArchive(t, map[string]string{"package/native/bin/tool": "x"}), dir))
	info, err := os.Stat(filepath.Join(dir, "package/native/bin/tool"))
	require.NoError(t, err)
	require.NotZero(t, info.Mode().Perm()&0o100, "programs can be run")
}

// fakeServer unpacks programs that only say their version.
func fakeServer(version string) func(context.Context, string, int) (string, error) {
	return func(_ context.Context, staging string, _ int) (string, error) {
		native := filepath.Join(staging, "native")
		if err := os.MkdirAll(filepath.Join(native, "bin"), 0o700); err != nil {
			return "", err
		}
		var errs []error
		for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
			script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
			errs = append(errs, os.WriteFile(filepath.Join(native, "bin", program), []byte(script), 0o600))
		}
		return native, errors.Join(errs...)
	}
}

func TestTwoThatFetchAtOnceFetchOnce(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	stale := filepath.Join(cache, stagingPrefix+"1")
	require.NoError(t, os.Mkdir(stale, 0o700))
	var fetched atomic.Int32
	from := []source{{"fake", func(ctx context.Context, staging string, major int) (string, error) {
		fetched.Add(1)
		return fakeServer("16.1")(ctx, staging, major)
	}}}
	var group errgroup.Group
	for range 4 {
		group.Go(func() error {
			bin, err := fetch(t.Context(), cache, 16, io.Discard, from)
			if err == nil && majorOf(t.Context(), bin) != 16 {
				err = errors.New("not there")
			}
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, int32(1), fetched.Load())
	left, err := filepath.Glob(filepath.Join(cache, stagingPrefix+"*"))
	require.NoError(t, err)
	require.Empty(t, left, "what a killed fetch left is gone too")
}

// What doesn't run, or is another version, is not put into the cache; the next source is tried; in the end every reason is said.
func TestUselessFetchIsNotKeptAndEachSourcesReasonIsSaid(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	away := source{"first", func(context.Context, string, int) (string, error) { return "", errors.New("no network") }}
	other := source{"second", fakeServer("15.3")}
	silent := source{"third", fakeServer("")}
	_, err := fetch(t.Context(), cache, 16, io.Discard, []source{away, other, silent})
	require.ErrorContains(t, err, "first: no network")
	require.ErrorContains(t, err, "second: what was fetched is PostgreSQL 15")
	require.ErrorContains(t, err, "third: what was fetched is of no use")
	require.Zero(t, majorOf(t.Context(), cachedBin(cache, 16)))

	bin, err := fetch(t.Context(), cache, 16, io.Discard, []source{away, other, {"fourth", fakeServer("16.2")}})
	require.NoError(t, err)
	require.Equal(t, cachedBin(cache, 16), bin)
	info, err := os.Stat(bin)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm(), "the server's user must get in")
}

// testdata/server.txz holds three shell scripts: postgres says version 16.9, initdb and pg_ctl refuse, as real ones do under root.
func TestArchiveIsOfUseAlsoWhereItsServerCannotBeStarted(t *testing.T) {
	t.Parallel()
	inner, err := os.ReadFile("testdata/server.txz")
	require.NoError(t, err)
	var jar bytes.Buffer
	zipped := zip.NewWriter(&jar)
	entry, err := zipped.Create("postgres.txz")
	require.NoError(t, err)
	_, err = entry.Write(inner)
	require.NoError(t, err)
	require.NoError(t, zipped.Close())
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, ".jar") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write(jar.Bytes())
	}))
	t.Cleanup(repository.Close)
	cache := t.TempDir()
	bin, err := fetch(t.Context(), cache, 16, io.Discard, []source{{"archive", archiveFrom(repository.URL)}})
	require.NoError(t, err)
	require.Equal(t, 16, majorOf(t.Context(), bin))

	repository.Close()
	_, err = fetch(t.Context(), t.TempDir(), 16, io.Discard, []source{{"archive", archiveFrom(repository.URL)}})
	require.ErrorContains(t, err, "archive: unable to connect")
}

func TestFetchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	unlock, err := lockFile(t.Context(), filepath.Join(cache, "fetch.lock"))
	require.NoError(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = fetch(ctx, cache, 16, io.Discard, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "fetch.lock")
}

func TestUnusableProgramsFolderIsNamedAndPassedOver(t *testing.T) {
	t.Setenv("PG_BIN", t.TempDir())
	var said bytes.Buffer
	bin, err := findBinaries(t.Context(), defaultMajor, &said)
	require.NoError(t, err)
	require.NotZero(t, majorOf(t.Context(), bin))
	require.Contains(t, said.String(), "PG_BIN is not used")

	native, err := fakeServer("13.3")(t.Context(), t.TempDir(), 0)
	require.NoError(t, err)
	require.NoError(t, makeReadable(native))
	t.Setenv("PG_BIN", filepath.Join(native, "bin"))
	_, err = findBinaries(t.Context(), defaultMajor, &said)
	require.NoError(t, err)
	require.Contains(t, said.String(), "has PostgreSQL 13, wanted is 16 (PG_MAJOR)")
}
