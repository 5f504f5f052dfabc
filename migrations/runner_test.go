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

// Flyway's algorithm as it is published: java.io.BufferedReader's lines in UTF-8, without their ends (LF, CR or CRLF, nothing else), a byte-order
// mark of the first line dropped, each into one java.util.zip.CRC32, its value cast to a signed int.
//
// The expected values come from a program of ten lines that does this with Java's own two classes, run by hand on OpenJDK 17; Flyway's jar itself
// wasn't at hand. The first one is the check value that CRC-32 is published with: 0xCBF43926 = 3421780262, signed -873187034.
func TestChecksumIsFlyways(t *testing.T) {
	t.Parallel()
	const one, table = int32(-698626245), int32(-1153110715)
	for _, c := range []struct {
		name, text string
		checksum   int32
	}{
		{"check value", "123456789", -873187034},
		{"empty", "", 0},
		{"an empty line", "\n", 0},
		{"empty lines, CRLF", "\r\n\r\n", 0},
		{"a byte-order mark alone", "\ufeff", 0},
		{"a byte-order mark on a line of its own", "\ufeff\nSELECT 1;\n", 78787420},
		{"LF", "CREATE TABLE one (n int);\n", one},
		{"CRLF", "CREATE TABLE one (n int);\r\n", one},
		{"no final newline", "CREATE TABLE one (n int);", one},
		{"byte-order mark", "\ufeffCREATE TABLE one (n int);\n", one},
		{"lines, LF", "CREATE TABLE one (\n    n int\n);\n", table},
		{"lines, CRLF", "CREATE TABLE one (\r\n    n int\r\n);\r\n", table},
		{"lines, lone CR", "CREATE TABLE one (\r    n int\r);\r", table},
		{"lines, no final newline", "CREATE TABLE one (\n    n int\n);", table},
		{"empty lines before, between and after", "\n\nCREATE TABLE one (\n\n    n int\n);\n\n\n", table},
		{"non-ASCII", "-- K\u00f6nigin, \u8acb\u6c42\u66f8, \U0001f512\nSELECT 'Stra\u00dfe';\n", -1424290854},
		{"a byte-order mark on the second line counts", "SELECT 1;\n\ufeffSELECT 2;\n", -737986772},
		{"only one byte-order mark is dropped", "\ufeff\ufeffSELECT 1;\n", -1606921097},
		{"NEL, LINE SEPARATOR, VT and FF end no line", "\nSELECT 1;\u0085SELECT 2;\u2028SELECT 3;\u000bSELECT 4;\u000cSELECT 5;\n", 2019492946},
		{"white space before a line end counts", "SELECT 1; \t\n", 73398533},
		{"mixed line ends, CR at the end", "SELECT 1;\n\r\nSELECT 2;\n\r", -1665099012},
	} {
		require.Equal(t, c.checksum, migrations.Checksum(c.text), c.name)
	}
	// And once more from first principles: the textbook's CRC, bit by bit, over the bytes of the lines.
	require.Equal(t, crcByHand([]byte("SELECT 1;SELECT 2;")), migrations.Checksum("SELECT 1;\n\r\nSELECT 2;\n\r"))
	require.Equal(t, crcByHand([]byte{0xC3, 0xA4, 0xC3, 0xB6, 0xC3, 0xBC}), migrations.Checksum("\u00e4\u00f6\u00fc\n"))
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
	require.ErrorIs(t, err, migrations.ErrChanged)
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
	require.ErrorIs(t, err, migrations.ErrNewer)
	require.ErrorContains(t, err, "version 2 (V2__two.sql), which this program doesn't know (its newest is 1); use the newer program")

	_, err = conn.Exec(t.Context(), "DELETE FROM flyway_schema_history WHERE version = '1'")
	require.NoError(t, err)
	_, err = migrations.Apply(t.Context(), conn, set(files))
	require.ErrorIs(t, err, migrations.ErrOrder)
	require.NotErrorIs(t, err, migrations.ErrNewer)
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
