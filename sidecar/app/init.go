package app

import (
	"errors"

	"fenceline/sidecar/config"
	"fenceline/sidecar/mark/filemark"
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
