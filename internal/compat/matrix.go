package main

// suite is a row of the table: tests of one package.
type suite struct {
	name    string
	pattern string // of tests; empty: all
	pkg     string
}

// environment is a column of the table: what the suites run on.
type environment struct {
	name   string
	major  int  // of PostgreSQL
	pooled bool // through PgBouncer in transaction mode
}

func majors() []int { return []int{14, 15, 16, 17, 18} }

// poolerMajor is the version that stands behind PgBouncer: the one that the contract names.
const poolerMajor = 16

// suites are those that every server must pass.
func suites() []suite {
	return []suite{
		{migrating, "", "./migrations"},
		{transactions, "", "./internal/postgres"},
		{locking, "", "./lockd/pgstore"},
		{marking, "", "./sidecar/mark/pgmark"},
		{paying, "", "./paysvc/paydb"},
		{restoring, "TestRestoreAsDocumented", "./lockd"},
	}
}

// pooledSuites are those through PgBouncer. Locks and marks have tests of their own for it; the payment statements' whole suite takes the
// pooler instead of the server where this variable is set (pgtest.Login).
func pooledSuites() []suite {
	return []suite{
		{migrating, "Pooler", "./migrations"},
		{locking, "Pooler", "./lockd/pgstore"},
		{marking, "Pooler|RegistrationSees|OfExclusiveGuards", "./sidecar/mark/pgmark"},
		{paying, "", "./paysvc/paydb"},
	}
}

const pooledVariable = "TEST_POSTGRES_POOLED"

// gate is a question to an environment that tests answer (the gates of a release: database, application, operations).
type gate struct {
	name  string
	tests []proof // every one of them must have passed
}

// proof is a test in a suite. Suites may have tests of the same name, each of which proves something of its own.
type proof struct{ suite, test string }

func (p proof) String() string { return p.suite + ": " + p.test }

// in is every test in one suite, or one test in every suite.
func in(suites []string, tests ...string) (all []proof) {
	for _, suite := range suites {
		for _, test := range tests {
			all = append(all, proof{suite, test})
		}
	}
	return all
}

// The suites' names.
const (
	migrating, transactions, locking, marking, paying, restoring = "migrations", "transactions and SQLSTATEs", "locks", "marks", "payment statements", "restore as documented"
)

func gates() []gate {
	stores := []string{locking, marking, paying}
	return []gate{
		{"database: migrations and their history", in([]string{migrating},
			"TestEverySetAppliesOnceAndIsThenUpToDate", "TestChangedAppliedFileIsRefusedWithBothChecksums", "TestTwoRunnersAtOnceApplyEachScriptOnce")},
		{"database: the schema is the described one", in([]string{migrating}, "TestSchemaIsTheDescribedOne", "TestDriftOfASchemaIsFoundByTheObjectsName")},
		{"database: grants", in([]string{migrating}, "TestRolesAreDeniedWhatTheyDoNotNeed", "TestRolesAreAllowedWhatTheyNeed")},
		{"database: statements and their rows", in(stores, "TestStatementsGiveTheRowsThatTheyAreRegisteredWith")},
		{"application: failures by SQLSTATE", in([]string{transactions}, "TestFailuresHaveTheirIdentity")},
		{"application: versions that fit", in(stores, "TestVersionsOutsideOfTheWindowAreNotReady", "TestExpandedSchemaIsWorkedWithAndAContractedOneRefused")},
		{"application: readiness by identity", in([]string{locking, paying}, "TestReadinessKnowsTheDatabaseByItsIdentity")},
		{"application: order of effects", in([]string{marking}, "TestRegisterConformance", "TestRegisterConformanceOfExclusiveGuards")},
		{"operations: restore as documented", in([]string{restoring}, "TestRestoreAsDocumentedHandsOutNoTokenTwice")},
	}
}

// pooledGates are those that a pooler can break.
func pooledGates() []gate {
	return []gate{
		{"database: migrations through the pooler", in([]string{migrating}, "TestMigrationsApplyThroughAPooler")},
		{"database: statements and their rows", in([]string{paying}, "TestStatementsGiveTheRowsThatTheyAreRegisteredWith")},
		{"application: locks", in([]string{locking}, "TestMatrixHoldsBehindATransactionModePooler")},
		{"application: order of effects", in([]string{marking}, "TestRegisterConformanceThroughAPoolerInTransactionMode", "TestRegistrationSeesWhoeverItWaitedForWhateverTheDefaultIsolation")},
	}
}

// neverRun are environments that a release for production wants and that nothing here sets up. They stay blockers.
func neverRun() []string {
	return []string{
		"a cluster with failover by an operator (Patroni, a managed service), requests in flight",
		"load and latency of a production system, with its replicas",
		"a machine of another architecture than the one that is named here",
		"sign-off by those who own application and database",
	}
}
