package main

import (
	"fmt"
	"os"

	"fenceline/internal/pgserver"
)

func cacheDir() (string, error) {
	dir, err := pgserver.CacheDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // PostgreSQL's account reads there, too
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	return dir, nil
}
