package paydb

import "fenceline/internal/postgres"

// Statements are all that this package's stores send, with the number of rows that each gives.
func Statements() []postgres.Statement {
	all := []postgres.Statement{
		{Name: "selectPayout", SQL: selectPayout, Rows: postgres.ZeroOrOne},
		{Name: "listPayouts", SQL: listPayouts, Rows: postgres.Many},
		{Name: "selectAccount", SQL: selectAccount, Rows: postgres.ZeroOrOne},
		{Name: "insertPayout", SQL: insertPayout, Rows: postgres.ZeroOrOne},
		{Name: "selectPayoutByKey", SQL: selectPayoutByKey, Rows: postgres.ZeroOrOne},
		{Name: "selectCurrency", SQL: selectCurrency, Rows: postgres.ZeroOrOne},
		{Name: "diagnoseClaim", SQL: diagnoseClaim, Rows: postgres.ZeroOrOne},
		{Name: "failPayout", SQL: failPayout, Rows: postgres.ZeroOrOne},
		{Name: "creditClearing", SQL: creditClearing, Rows: postgres.ZeroOrOne},
		{Name: "selectLegs", SQL: selectLegs, Rows: postgres.Many},
		{Name: "checkRole", SQL: checkRole, Rows: postgres.One},
		{Name: "checkFencedRole", SQL: checkFencedRole, Rows: postgres.One},
		{Name: "checkClearing", SQL: checkClearing, Rows: postgres.One},
		{Name: "insertRequest", SQL: insertRequest, Rows: postgres.ZeroOrOne},
		{Name: "selectRequest", SQL: selectRequest, Rows: postgres.ZeroOrOne},
		{Name: "takeOverRequest", SQL: takeOverRequest, Rows: postgres.ZeroOrOne},
		{Name: "answerRequest", SQL: answerRequest, Rows: postgres.ZeroOrOne},
		{Name: "seedAccount", SQL: seedAccount, Rows: postgres.ZeroOrOne},
		{Name: "seedOpening", SQL: seedOpening, Rows: postgres.ZeroOrOne},
		{Name: "seedOpeningLeg", SQL: seedOpeningLeg, Rows: postgres.ZeroOrOne},
		{Name: "seedPayout", SQL: seedPayout, Rows: postgres.ZeroOrOne},
		{Name: "seeded", SQL: seeded, Rows: postgres.Many},
		{Name: "claimPayout", SQL: claimPayout, Rows: postgres.ZeroOrOne},
		{Name: "debitPayer", SQL: debitPayer, Rows: postgres.ZeroOrOne},
		{Name: "insertLeg", SQL: insertLeg, Rows: postgres.ZeroOrOne},
		{Name: "markPosted", SQL: markPosted, Rows: postgres.ZeroOrOne},
		{Name: "raiseFence", SQL: raiseFence, Rows: postgres.ZeroOrOne},
		{Name: "claimFenced", SQL: claimFenced, Rows: postgres.ZeroOrOne},
		{Name: "debitFenced", SQL: debitFenced, Rows: postgres.ZeroOrOne},
		{Name: "insertFencedLeg", SQL: insertFencedLeg, Rows: postgres.ZeroOrOne},
		{Name: "transitionFenced", SQL: transitionFenced, Rows: postgres.ZeroOrOne},
		{Name: "diagnoseFenced", SQL: diagnoseFenced, Rows: postgres.ZeroOrOne},
		{Name: "diagnoseFencedClaim", SQL: diagnoseFencedClaim, Rows: postgres.ZeroOrOne},
		{Name: "selectFence", SQL: selectFence, Rows: postgres.ZeroOrOne},
		{Name: "selectPayoutFence", SQL: selectPayoutFence, Rows: postgres.ZeroOrOne},
		{Name: "selectPayoutToAbandon", SQL: selectPayoutToAbandon, Rows: postgres.ZeroOrOne},
		{Name: "abandonPayout", SQL: abandonPayout, Rows: postgres.ZeroOrOne},
		{Name: "insertAbandonment", SQL: insertAbandonment, Rows: postgres.One},
	}
	return append(all, otherStatements()...)
}

// otherStatements are those of the rail-proxy, the relay and the reconciler.
func otherStatements() []postgres.Statement {
	all := []postgres.Statement{
		{Name: "selectRailPayout", SQL: selectRailPayout, Rows: postgres.ZeroOrOne},
		{Name: "insertSubmission", SQL: insertSubmission, Rows: postgres.ZeroOrOne},
		{Name: "movePayout", SQL: movePayout, Rows: postgres.ZeroOrOne},
		{Name: "selectPayoutState", SQL: selectPayoutState, Rows: postgres.ZeroOrOne},
		{Name: "selectSubmissions", SQL: selectSubmissions, Rows: postgres.Many},
		{Name: "advanceMark", SQL: advanceMark, Rows: postgres.ZeroOrOne},
		{Name: "selectMark", SQL: selectMark, Rows: postgres.ZeroOrOne},
		{Name: "selectAttempt", SQL: selectAttempt, Rows: postgres.ZeroOrOne},
		{Name: "selectClaim", SQL: selectClaim, Rows: postgres.ZeroOrOne},
		{Name: "insertIntent", SQL: insertIntent, Rows: postgres.One},
		{Name: "insertFenced", SQL: insertFenced, Rows: postgres.One},
		{Name: "resolveIntent", SQL: resolveIntent, Rows: postgres.ZeroOrOne},
		{Name: "checkRailRole", SQL: checkRailRole, Rows: postgres.One},
		{Name: "checkFencedRailRole", SQL: checkFencedRailRole, Rows: postgres.One},
		{Name: "claimEvents", SQL: claimEvents, Rows: postgres.Many},
		{Name: "markDelivered", SQL: markDelivered, Rows: postgres.ZeroOrOne},
		{Name: "markFailed", SQL: markFailed, Rows: postgres.ZeroOrOne},
		{Name: "unparkEvents", SQL: unparkEvents, Rows: postgres.Many},
		{Name: "selectBacklog", SQL: selectBacklog, Rows: postgres.One},
		{Name: "checkRelayRole", SQL: checkRelayRole, Rows: postgres.One},
		{Name: "createTransfers", SQL: createTransfers, Rows: postgres.Effect},
		{Name: "dropTransfers", SQL: dropTransfers, Rows: postgres.Effect},
		{Name: "indexTransfers", SQL: indexTransfers, Rows: postgres.Effect},
		{Name: "analyzeTransfers", SQL: analyzeTransfers, Rows: postgres.Effect},
		{Name: "selectChecked", SQL: selectChecked, Rows: postgres.One},
		{Name: "selectStates", SQL: selectStates, Rows: postgres.Many},
		{Name: "selectTotals", SQL: selectTotals, Rows: postgres.Many},
		{Name: "selectAmbiguous", SQL: selectAmbiguous, Rows: postgres.Many},
		{Name: "resolveSubmission", SQL: resolveSubmission, Rows: postgres.ZeroOrOne},
	}
	for _, d := range discrepancies() {
		all = append(all, postgres.Statement{Name: "discrepancy " + string(d.class), SQL: d.list(), Rows: postgres.Many})
	}
	return all
}
