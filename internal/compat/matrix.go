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
		{"migrations", "", "./migrations"},
		{"transactions and SQLSTATEs", "", "./internal/postgres"},
		{"locks", "", "./lockd/pgstore"},
		{"marks", "", "./sidecar/mark/pgmark"},
		{"payment statements", "", "./paysvc/paydb"},
		{"restore as documented", "TestRestoreAsDocumented", "./lockd"},
	}
}

// pooledSuites are those through PgBouncer. Locks and marks have tests of their own for it; the payment statements' whole suite takes the
// pooler instead of the server where this variable is set (pgtest.Login).
func pooledSuites() []suite {
	return []suite{
		{"migrations", "Pooler", "./migrations"},
		{"locks", "Pooler", "./lockd/pgstore"},
		{"marks", "Pooler|RegistrationSees|OfExclusiveGuards", "./sidecar/mark/pgmark"},
		{"payment statements", "", "./paysvc/paydb"},
	}
}

const pooledVariable = "TEST_POSTGRES_POOLED"

// gate is a question to an environment that tests answer (the gates of a release: database, application, operations).
type gate struct {
	name  string
	tests []string // every one of them must have passed, in every package that has it
}

func gates() []gate {
	return []gate{
		{"database: migrations and their history", []string{"TestEverySetAppliesOnceAndIsThenUpToDate", "TestChangedAppliedFileIsRefusedWithBothChecksums", "TestTwoRunnersAtOnceApplyEachScriptOnce"}},
		{"database: the schema is the described one", []string{"TestSchemaIsTheDescribedOne", "TestDriftOfASchemaIsFoundByTheObjectsName"}},
		{"database: grants", []string{"TestRolesAreDeniedWhatTheyDoNotNeed", "TestRolesAreAllowedWhatTheyNeed"}},
		{"database: statements and their rows", []string{"TestStatementsGiveTheRowsThatTheyAreRegisteredWith"}},
		{"application: failures by SQLSTATE", []string{"TestFailuresHaveTheirIdentity"}},
		{"application: versions that fit", []string{"TestVersionsOutsideOfTheWindowAreNotReady", "TestExpandedSchemaIsWorkedWithAndAContractedOneRefused"}},
		{"application: readiness by identity", []string{"TestReadinessKnowsTheDatabaseByItsIdentity"}},
		{"application: order of effects", []string{"TestRegisterConformance", "TestRegisterConformanceOfExclusiveGuards"}},
		{"operations: restore as documented", []string{"TestRestoreAsDocumentedHandsOutNoTokenTwice"}},
	}
}

// pooledGates are those that a pooler can break.
func pooledGates() []gate {
	return []gate{
		{"database: migrations through the pooler", []string{"TestMigrationsApplyThroughAPooler"}},
		{"database: statements and their rows", []string{"TestStatementsGiveTheRowsThatTheyAreRegisteredWith"}},
		{"application: locks", []string{"TestMatrixHoldsBehindATransactionModePooler"}},
		{"application: order of effects", []string{"TestRegisterConformanceThroughAPoolerInTransactionMode", "TestRegistrationSeesWhoeverItWaitedForWhateverTheDefaultIsolation"}},
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
