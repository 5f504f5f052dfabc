package payout

import (
	"fmt"
	"math"
	"strconv"
)

// Minor is an amount of money in minor units of its currency, such as cents. Never a floating-point number: those can't hold
// 0.10, and a ledger that drifts by cents can't be reconciled (C1 §1.5).
type Minor int64

// Add returns the sum, or ErrOverflow.
func (m Minor) Add(other Minor) (Minor, error) {
	if (other > 0 && m > math.MaxInt64-other) || (other < 0 && m < math.MinInt64-other) {
		return 0, fmt.Errorf("%w: %d + %d", ErrOverflow, m, other)
	}
	return m + other, nil
}

// Sub returns the difference, or ErrOverflow.
func (m Minor) Sub(other Minor) (Minor, error) {
	if (other < 0 && m > math.MaxInt64+other) || (other > 0 && m < math.MinInt64+other) {
		return 0, fmt.Errorf("%w: %d - %d", ErrOverflow, m, other)
	}
	return m - other, nil
}

// String is the amount in minor units, as decimal digits.
func (m Minor) String() string { return strconv.FormatInt(int64(m), 10) }

// Currency is an ISO 4217 code by its form: three capital letters.
type Currency string

// ParseCurrency reads a currency code. It judges the form only; which currencies are in use shows in the accounts.
func ParseCurrency(text string) (Currency, error) {
	if len(text) != 3 {
		return "", errCurrency()
	}
	for i := range len(text) {
		if text[i] < 'A' || text[i] > 'Z' {
			return "", errCurrency()
		}
	}
	return Currency(text), nil
}

func errCurrency() error {
	return fmt.Errorf("%w: currency: want three capital letters such as EUR", ErrInvalid)
}

// Money is an amount with its currency.
type Money struct {
	Minor    Minor
	Currency Currency
}

// Add returns the sum. ErrCurrency means that the currencies differ, ErrOverflow that
// the sum can't be held.
func (m Money) Add(other Money) (Money, error) {
	if m.Currency != other.Currency {
		return Money{}, fmt.Errorf("%w: %s and %s", ErrCurrency, m.Currency, other.Currency)
	}
	sum, err := m.Minor.Add(other.Minor)
	return Money{Minor: sum, Currency: m.Currency}, err
}

// Payable checks that the money can be paid out: more than nothing.
func (m Money) Payable() error {
	if m.Minor <= 0 {
		return fmt.Errorf("%w: amountMinor: want a whole number above 0", ErrInvalid)
	}
	return nil
}
