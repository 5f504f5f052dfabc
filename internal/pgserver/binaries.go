package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
)

// defaultMajor is the version that the schema contract is written for.
const defaultMajor = 16

// npmVersions pins the published server builds. Every version there carries a
// pre-release suffix, so only an exact version can be asked for.
var npmVersions = map[int]string{ //nolint:gochecknoglobals // a constant table
	14: "14.23.0-beta.17",
	15: "15.18.0-beta.17",
	16: "16.14.0-beta.17",
	17: "17.10.0-beta.17",
	18: "18.4.0-beta.17",
}

// wantedMajor is the option, else PG_MAJOR, else 16.
func wantedMajor(option int) (int, error) {
	if option != 0 {
		return option, nil
	}
	text := os.Getenv("PG_MAJOR")
	if text == "" {
		return defaultMajor, nil
	}
	major, err := strconv.Atoi(text)
	if err != nil || major < 14 || major > 18 {
		return 0, fmt.Errorf("PG_MAJOR is %q: want 14 to 18", text)
	}
	return major, nil
}

// findBinaries returns a folder with initdb, pg_ctl and postgres of the wanted major version: PG_BIN, the cache, the usual system folders,
// else fetched into the cache. Only when nothing can be fetched is another version taken, and said.
func findBinaries(ctx context.Context, major int, progress io.Writer) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	given := os.Getenv("PG_BIN")
	if given != "" {
		found, err := versionOf(ctx, given)
		switch {
		case err != nil:
			fmt.Fprintf(progress, "PG_BIN is not used: %v\n", err)
		case found != major:
			fmt.Fprintf(progress, "PG_BIN is not used: %s has PostgreSQL %d, wanted is %d (PG_MAJOR)\n", given, found, major)
		default:
			return given, nil
		}
	}
	for _, dir := range append([]string{cachedBin(cache, major)}, systemFolders(major)...) {
		if majorOf(ctx, dir) == major {
			return dir, nil
		}
	}
	dir, fetchErr := fetch(ctx, cache, major, progress, sources())
	if fetchErr == nil {
		return dir, nil
	}
	for other := 18; other >= 14; other-- {
		for _, dir := range append([]string{given}, systemFolders(other)...) {
			if dir != "" && majorOf(ctx, dir) == other {
				fmt.Fprintf(progress, "PostgreSQL %d can't be fetched (%v); using the installed version %d instead\n", major, fetchErr, other)
				return dir, nil
			}
		}
	}
	return "", fmt.Errorf("no PostgreSQL %d here and none can be fetched; install npm or postgresql-%d, or set PG_BIN to the folder with its initdb: %w", major, major, fetchErr)
}

func systemFolders(major int) []string {
	dirs := []string{
		fmt.Sprintf("/usr/lib/postgresql/%d/bin", major),
		fmt.Sprintf("/usr/pgsql-%d/bin", major),
		fmt.Sprintf("/opt/homebrew/opt/postgresql@%d/bin", major),
		fmt.Sprintf("/usr/local/opt/postgresql@%d/bin", major),
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	return dirs
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// versionOf asks the server program in the folder for its major version.
func versionOf(ctx context.Context, dir string) (int, error) {
	for _, program := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil {
			return 0, fmt.Errorf("not a folder of PostgreSQL's server programs: %w", err)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").CombinedOutput() //nolint:gosec // a folder that we chose
	if err != nil {
		return 0, fmt.Errorf("%s doesn't run here: %w: %s", filepath.Join(dir, "postgres"), err, lastLines(string(out), 2))
	}
	parts := versionText.FindStringSubmatch(string(out))
	if parts == nil {
		return 0, fmt.Errorf("%s doesn't say its version", filepath.Join(dir, "postgres"))
	}
	return strconv.Atoi(parts[1])
}

// majorOf is versionOf, with 0 for a folder without a server that runs.
func majorOf(ctx context.Context, dir string) int {
	major, err := versionOf(ctx, dir)
	if err != nil {
		return 0
	}
	return major
}

// CacheDir is where fetched servers are kept and servers' data lives while they run: $FENCELINE_CACHE, else /var/cache/fenceline for root, else the
// user's cache folder. It is created when missing. Nothing is run from inside the project's own tree.
func CacheDir() (string, error) {
	dir := os.Getenv("FENCELINE_CACHE")
	if dir == "" && os.Geteuid() == 0 {
		dir = "/var/cache/fenceline"
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache folder; set FENCELINE_CACHE: %w", err)
		}
		dir = filepath.Join(base, "fenceline")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("cache folder: %w", err)
	}
	if err := makeFolder(dir); err != nil {
		return "", fmt.Errorf("make the cache folder; set FENCELINE_CACHE to one that can be written: %w", err)
	}
	return dir, nil
}

func cachedBin(cache string, major int) string {
	return filepath.Join(cache, fmt.Sprintf("postgresql-%s", npmVersions[major]), "bin")
}

// platform is the name of this machine's build, "" when there is none.
func platform() string {
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	if arch == "" || (runtime.GOOS != "linux" && runtime.GOOS != "darwin") {
		return ""
	}
	return runtime.GOOS + "-" + arch
}

var errNoBuild = errors.New("no published build for this platform")

// lastLines keeps an error's text short.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// firstLines is for programs that begin with the reason; on one line.
func firstLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[:min(len(lines), n)], ", ")
}
