package app

import (
	"context"
	"os"

	"fenceline/internal/manifest"
	"fenceline/internal/migrate"
	"fenceline/migrations"
	"fenceline/paysvc/paydb"
)

// Migrate is the command migrate.
type Migrate struct {
	DatabaseURL   string `help:"Connection URL of paydb, as its owner." env:"PAYSVC_DATABASE_URL,PAYDB_URL" placeholder:"URL"`
	WithSeed      bool   `help:"Also apply the synthetic accounts of the demonstration; never where real money is."`
	migrate.Flags `embed:""`
}

// Help is the command's longer help.
func (c *Migrate) Help() string {
	return `Run it as the database's owner; the roles then run as logins with the least that they need (payapp, railapp).

Example:
  export PAYSVC_DATABASE_URL=postgres://owner:secret@127.0.0.1:5432/paydb
  paysvc migrate --check || paysvc migrate
  paysvc migrate --print-sql > paydb.sql`
}

// Run applies, checks or prints the migrations.
func (c *Migrate) Run() error {
	sets := []migrations.Set{migrations.PayDB()}
	if c.WithSeed {
		sets = append(sets, migrations.SeedPayDB())
	}
	command := migrate.Command{Flags: c.Flags, DatabaseURL: c.DatabaseURL, Sets: sets}
	return command.Run(context.Background(), os.Stdout)
}

// Manifest says what paysvc is towards paydb.
func Manifest() manifest.Manifest {
	return manifest.New("paysvc", paydb.Contract(), paydb.Statements())
}
