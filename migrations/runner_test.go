package migrations_test

import (
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/migrations"
)

// set makes a set of files for a test.
func set(files map[string]string) migrations.Set {
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys["t/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	return migrations.SetOf(fsys, "t")
}

func one() map[string]string {
	return map[string]string{"V1__create_one.sql": "CREATE TABLE one (n int);\n"}
}

// Flyway's algorithm: CRC-32 (polynomial 0xEDB88320) over the bytes of all lines without their line ends, stored signed. The expected
// values come from elsewhere: the algorithm's published check value, and the textbook form of it below.
func TestChecksumIsFlyways(t *testing.T) {
	t.Parallel()
	// CRC-32 of "123456789", the check value that the algorithm is published with: 0xCBF43926 = 3421780262, signed −873187034.
	require.Equal(t, int32(-873187034), migrations.Checksum("123456789"))
	for _, same := range []string{"123456789\n", "123456789\r\n", "\ufeff123456789", "1234\n56789", "1234\r\n\r\n56789\n", "\n\n123456789", "12345\r6789"} {
		require.Equal(t, int32(-873187034), migrations.Checksum(same), "%q", same)
	}
	// CRC-32 of the UTF-8 bytes of "äöü" (C3 A4 C3 B6 C3 BC).
	require.Equal(t, crcByHand([]byte{0xC3, 0xA4, 0xC3, 0xB6, 0xC3, 0xBC}), migrations.Checksum("äöü\n"))
	require.Equal(t, int32(0), migrations.Checksum(""))
	require.NotEqual(t, migrations.Checksum("a b"), migrations.Checksum("ab"), "white space within a line counts")
	require.NotEqual(t, migrations.Checksum("\n\ufeffa"), migrations.Checksum("\na"), "a byte-order mark counts anywhere but at the start")
}

// crcByHand is the textbook algorithm, bit by bit.
func crcByHand(data []byte) int32 {
	crc := ^uint32(0)
	for _, b := range data {
		crc ^= uint32(b)
		for range 8 {
			if crc&1 == 1 {
				crc = crc>>1 ^ 0xEDB88320
			} else {
				crc >>= 1
			}
		}
	}
	return int32(^crc)
}

func TestFileNamesAndNumbersAreChecked(t *testing.T) {
	t.Parallel()
	for name, problem := range map[string]string{
		"V1_one_underscore.sql": "want V<n>__", "V01__zero.sql": "want V<n>__", "V1__Upper.sql": "want V<n>__", "notes.txt": "want V<n>__",
		"V3__gap.sql": "where version 2 should", "V1__double.sql": "where version 2 should",
	} {
		files := one()
		files[name] = "SELECT 1;"
		_, err := migrations.Load(set(files))
		require.ErrorContains(t, err, problem, name)
		require.ErrorContains(t, err, name)
	}
	for _, embedded := range []migrations.Set{migrations.LockDB(), migrations.PayDB(), migrations.Fence(), migrations.SeedPayDB()} {
		all, err := migrations.Load(embedded)
		require.NoError(t, err)
		require.Positive(t, all)
	}
}

func TestChangedAppliedFileIsRefusedWithBothChecksums(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	_, err := migrations.Apply(t.Context(), conn, set(one()))
	require.NoError(t, err)

	crlf := set(map[string]string{"V1__create_one.sql": "CREATE TABLE one (n int);\r\n"})
	applied, err := migrations.Apply(t.Context(), conn, crlf)
	require.NoError(t, err, "other line ends are the same file")
	require.Empty(t, applied)

	changed := set(map[string]string{"V1__create_one.sql": "CREATE TABLE one (n bigint);\n", "V2__next.sql": "CREATE TABLE two ();"})
	_, err = migrations.Apply(t.Context(), conn, changed)
	require.ErrorContains(t, err, "V1__create_one.sql was changed")
	require.ErrorContains(t, err, itoa(migrations.Checksum("CREATE TABLE one (n int);")))
	require.ErrorContains(t, err, itoa(migrations.Checksum("CREATE TABLE one (n bigint);")))
	_, err = migrations.Pending(t.Context(), conn, changed)
	require.Error(t, err)
	require.False(t, exists(t, conn, "two"), "nothing after it was applied")
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

func exists(t *testing.T, conn *pgx.Conn, table string) (found bool) {
	t.Helper()
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT to_regclass($1) IS NOT NULL", table).Scan(&found))
	return found
}

func TestFailingMigrationLeavesNothingAndTheNextRunGoesOn(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	files := one()
	files["V2__fail_halfway.sql"] = "CREATE TABLE half (n int); SELECT 1/0;"
	applied, err := migrations.Apply(t.Context(), conn, set(files))
	require.ErrorContains(t, err, "V2__fail_halfway.sql")
	require.Equal(t, []string{"V1__create_one.sql"}, applied)
	require.False(t, exists(t, conn, "half"))
	pending, err := migrations.Pending(t.Context(), conn, set(files))
	require.NoError(t, err)
	require.Equal(t, []string{"V2__fail_halfway.sql"}, pending)

	files["V2__fail_halfway.sql"] = "CREATE TABLE half (n int);"
	applied, err = migrations.Apply(t.Context(), conn, set(files))
	require.NoError(t, err)
	require.Equal(t, []string{"V2__fail_halfway.sql"}, applied)
}

func TestDatabaseThatIsNewerOrHasAGapIsRefused(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	files := one()
	files["V2__two.sql"] = "CREATE TABLE two ();"
	_, err := migrations.Apply(t.Context(), conn, set(files))
	require.NoError(t, err)
	_, err = migrations.Apply(t.Context(), conn, set(one()))
	require.ErrorContains(t, err, "which this program doesn't know")

	_, err = conn.Exec(t.Context(), "DELETE FROM flyway_schema_history WHERE version = '1'")
	require.NoError(t, err)
	_, err = migrations.Apply(t.Context(), conn, set(files))
	require.ErrorContains(t, err, "where version 1 should stand")
	_, err = conn.Exec(t.Context(), "UPDATE flyway_schema_history SET success = false")
	require.NoError(t, err)
	_, err = migrations.Apply(t.Context(), conn, set(files))
	require.ErrorContains(t, err, "V2__two.sql failed")
}

func TestRepeatableIsAppliedAgainWhenItsTextChanges(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	files := one()
	files["R__fill.sql"] = "INSERT INTO one VALUES (1);"
	for range 2 {
		_, err := migrations.Apply(t.Context(), conn, set(files))
		require.NoError(t, err)
	}
	files["R__fill.sql"] = "INSERT INTO one VALUES (2), (3);"
	applied, err := migrations.Apply(t.Context(), conn, set(files))
	require.NoError(t, err)
	require.Equal(t, []string{"R__fill.sql"}, applied)
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM one").Scan(&n))
	require.Equal(t, 3, n)
}

func TestTwoRunnersAtOnceApplyEachScriptOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	files := one()
	files["V2__slow.sql"] = "CREATE TABLE two (n int); SELECT pg_sleep(0.1);"
	files["V3__three.sql"] = "CREATE TABLE three (n int);"
	group, ctx := errgroup.WithContext(t.Context())
	counts := make([]int, 4)
	for i := range counts {
		group.Go(func() error {
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(ctx) }()
			applied, err := migrations.Apply(ctx, conn, set(files))
			counts[i] = len(applied)
			return err
		})
	}
	require.NoError(t, group.Wait())
	total := 0
	for _, n := range counts {
		total += n
	}
	require.Equal(t, 3, total)
}

// What an operator's Flyway would find: its own columns, filled as it fills them.
func TestHistoryIsFlyways(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	_, err := migrations.Apply(t.Context(), conn, set(one()))
	require.NoError(t, err)
	var rank, checksumStored, took int32
	var version, description, kind, script, by string
	var success bool
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT installed_rank, version, description, type, script, checksum, installed_by, execution_time, success
		FROM flyway_schema_history`).Scan(&rank, &version, &description, &kind, &script, &checksumStored, &by, &took, &success))
	require.Equal(t, []any{int32(1), "1", "create one", "SQL", "V1__create_one.sql", migrations.Checksum("CREATE TABLE one (n int);"), "postgres", true},
		[]any{rank, version, description, kind, script, checksumStored, by, success})
}

// A history that Flyway has begun, its row for the schema that it made included, is carried on with; what it recorded is believed and compared.
func TestFlywaysOwnHistoryIsCarriedOn(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t))
	_, err := conn.Exec(t.Context(), `
		CREATE TABLE "public"."flyway_schema_history" (
			"installed_rank" INT NOT NULL, "version" VARCHAR(50), "description" VARCHAR(200) NOT NULL, "type" VARCHAR(20) NOT NULL,
			"script" VARCHAR(1000) NOT NULL, "checksum" INTEGER, "installed_by" VARCHAR(100) NOT NULL,
			"installed_on" TIMESTAMP NOT NULL DEFAULT now(), "execution_time" INTEGER NOT NULL, "success" BOOLEAN NOT NULL);
		ALTER TABLE "public"."flyway_schema_history" ADD CONSTRAINT "flyway_schema_history_pk" PRIMARY KEY ("installed_rank");
		CREATE INDEX "flyway_schema_history_s_idx" ON "public"."flyway_schema_history" ("success");
		INSERT INTO flyway_schema_history VALUES (0, NULL, '<< Flyway Schema Creation >>', 'SCHEMA', '"public"', NULL, 'operator', now(), 0, true);
		CREATE TABLE one (n int)`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "INSERT INTO flyway_schema_history VALUES (1, '1', 'create one', 'SQL', 'V1__create_one.sql', $1, 'operator', now(), 12, true)",
		migrations.Checksum("CREATE TABLE one (n int);"))
	require.NoError(t, err)

	files := one()
	files["V2__two.sql"] = "CREATE TABLE two (n int);"
	applied, err := migrations.Apply(t.Context(), conn, set(files))
	require.NoError(t, err)
	require.Equal(t, []string{"V2__two.sql"}, applied)
	var ranks []int32
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT array_agg(installed_rank ORDER BY installed_rank) FROM flyway_schema_history").Scan(&ranks))
	require.Equal(t, []int32{0, 1, 2}, ranks)
}

// An address that was mixed up says so, rather than that a file was changed.
func TestAnotherProgramsDatabaseIsRecognised(t *testing.T) {
	t.Parallel()
	conn := pgtest.Connect(t, pgtest.Database(t, migrations.PayDB()))
	_, err := migrations.Apply(t.Context(), conn, migrations.LockDB())
	require.ErrorContains(t, err, "version 1 in the database is V1__create_account_and_payout.sql")
	require.ErrorContains(t, err, "another program's database?")
	require.False(t, exists(t, conn, "lock_entry"))
}
