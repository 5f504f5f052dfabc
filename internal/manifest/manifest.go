// Package manifest says what a program is towards its database: which schemas it can work with, which statements it sends, and how. It is
// what an operator compares before two versions of a program and a schema are let run together.
package manifest

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime/debug"

	"fenceline/internal/buildinfo"
	"fenceline/internal/postgres"
)

// Manifest is what `version --json` prints.
type Manifest struct {
	Program  string   `json:"program"`
	Version  string   `json:"version"`
	Database Database `json:"database"`
}

// Database is the contract with the database. A schema outside of ContractMin to ContractMax, both included, is refused.
type Database struct {
	Contract    string `json:"contract"`
	ContractMin int    `json:"contractMin"`
	ContractMax int    `json:"contractMax"`
	// Statements is the SHA-256 of all statements, in hexadecimal.
	Statements string `json:"statementsSha256"`
	Driver     string `json:"driver"`
	// QueryMode is the default; the program's flag or configuration changes it.
	QueryMode string `json:"queryMode"`
	// Pooling is what a pooler in between may do: with the default query mode connections may change between transactions.
	Pooling string `json:"pooling"`
}

const driver = "github.com/jackc/pgx/v5"

// New describes a program.
func New(program string, contract postgres.Contract, statements []postgres.Statement) Manifest {
	return Manifest{Program: program, Version: buildinfo.Version(), Database: Database{
		Contract: contract.Name, ContractMin: contract.Min, ContractMax: contract.Max,
		Statements: postgres.Checksum(statements), Driver: driver + " " + driverVersion(),
		QueryMode: postgres.DefaultQueryMode, Pooling: "transaction",
	}}
}

func driverVersion() string {
	info, ok := debug.ReadBuildInfo()
	for i := 0; ok && i < len(info.Deps); i++ {
		if info.Deps[i].Path == driver {
			return info.Deps[i].Version
		}
	}
	return "unknown"
}

// Print writes the manifest as a line of JSON, or name and version for people.
func (m Manifest) Print(w io.Writer, asJSON bool) error {
	if !asJSON {
		_, err := fmt.Fprintln(w, m.Program, m.Version)
		return err
	}
	return json.NewEncoder(w).Encode(m)
}
