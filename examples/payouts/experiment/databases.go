package experiment

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"fenceline/internal/pgserver"
	"fenceline/internal/process"
	"fenceline/paysvc/invariant"
)

// databases are the two databases of one run and the logins that its processes use. No
// process runs as the owner: each has the least that its role allows.
type databases struct {
	lock, pay *pgserver.Server
	lockName  string
	payName   string
	made      []database // what this run made, and may therefore drop
	roles     []login
}

type database struct {
	server *pgserver.Server
	name   string
}

// login is a role made for one process of one run.
type login struct {
	server      *pgserver.Server
	name        string
	databaseURL string
}

// Group roles of the migrations, by the process that runs under them.
const (
	groupLockd          = "lockapp"
	groupResource       = "payapp"
	groupResourceFenced = "payapp_fenced"
	groupRailProxy      = "railapp"
	groupSidecarAccount = "fence_account"
	groupSidecarRail    = "fence_rail"
)

// prepareDatabases makes both databases and migrates them with the programs' own
// migrate commands, as an operator would.
func (b *Bench) prepareDatabases(ctx context.Context, run, logDir string) (*databases, error) {
	prefix := "fenceline_" + b.suffix + "_" + run
	d := &databases{lock: b.lock, pay: b.pay, lockName: prefix + "_lockdb", payName: prefix + "_paydb"}
	for _, one := range []database{{d.lock, d.lockName}, {d.pay, d.payName}} {
		if err := execute(ctx, one.server, "CREATE DATABASE "+pgx.Identifier{one.name}.Sanitize()); err != nil {
			return nil, errors.Join(err, d.drop(ctx))
		}
		d.made = append(d.made, one)
	}
	for _, command := range []struct {
		name, program string
		args, env     []string
	}{
		{"migrate-lockdb", "lockd", []string{"migrate"}, []string{"LOCKD_DATABASE_URL=" + d.lock.URL(d.lockName)}},
		{"migrate-paydb", "paysvc", []string{"migrate", "--with-seed"}, []string{"PAYSVC_DATABASE_URL=" + d.pay.URL(d.payName)}},
		{"migrate-fence", "sidecar", []string{"migrate"}, []string{"SIDECAR_DATABASE_URL=" + d.pay.URL(d.payName)}},
	} {
		spec := process.Spec{Name: command.name, Path: b.program(command.program), Args: command.args, Env: command.env, LogDir: logDir}
		if err := runToEnd(ctx, spec); err != nil {
			return nil, errors.Join(err, d.drop(ctx))
		}
	}
	if err := d.keepHistory(ctx); err != nil {
		return nil, errors.Join(err, d.drop(ctx))
	}
	return d, nil
}

// keepHistory makes paydb write down every change, for the invariants that the final state can't show. The database lives as long as the run.
func (d *databases) keepHistory(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, d.pay.URL(d.payName))
	if err != nil {
		return fmt.Errorf("connect to paydb: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return invariant.InstallHistory(ctx, conn)
}

// runToEnd runs a command and wants exit code 0.
func runToEnd(ctx context.Context, spec process.Spec) error {
	p, err := process.Start(ctx, spec)
	if err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		return errors.Join(err, p.Kill(context.WithoutCancel(ctx)))
	}
	if code != 0 {
		return fmt.Errorf("%s ended with exit code %d:\n%s", spec.Name, code, p.Tail())
	}
	return nil
}

// login makes a role that is a member of the group and returns the URL with which to
// connect as it. The password is random and lives as long as the run.
func (d *databases) login(ctx context.Context, server *pgserver.Server, database, group string) (string, error) {
	name := database + "_" + group
	password := rand.Text()
	create := fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' IN ROLE %s",
		pgx.Identifier{name}.Sanitize(), password, pgx.Identifier{group}.Sanitize())
	if err := execute(ctx, server, create); err != nil {
		return "", fmt.Errorf("make a login for %s: %w", group, err)
	}
	url := server.URLFor(database, name, password)
	d.roles = append(d.roles, login{server: server, name: name, databaseURL: url})
	return url, nil
}

// drop removes the databases and the logins of this run.
func (d *databases) drop(ctx context.Context) error {
	var errs []error
	for _, one := range d.made {
		errs = append(errs, execute(ctx, one.server, "DROP DATABASE IF EXISTS "+pgx.Identifier{one.name}.Sanitize()+" WITH (FORCE)"))
	}
	for _, role := range d.roles {
		errs = append(errs, execute(ctx, role.server, "DROP ROLE IF EXISTS "+pgx.Identifier{role.name}.Sanitize()))
	}
	return errors.Join(errs...)
}

// execute runs one statement on the server's maintenance database.
func execute(ctx context.Context, server *pgserver.Server, sql string) error {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("prepare the server: %w", err)
	}
	return nil
}

// systemIdentifier tells servers apart, whatever names lead to them.
func systemIdentifier(ctx context.Context, server *pgserver.Server) (int64, error) {
	conn, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var id int64
	if err := conn.QueryRow(ctx, "SELECT system_identifier FROM pg_control_system()").Scan(&id); err != nil {
		return 0, fmt.Errorf("read the server's identity: %w", err)
	}
	return id, nil
}
