package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"fenceline/paysvc/paydb"
	"fenceline/paysvc/payout"
)

// Seed is the command seed: synthetic accounts and PENDING payouts. The same flags give the same ids, and what is there already stays.
type Seed struct {
	DatabaseURL     string        `help:"Connection URL of paydb." env:"PAYSVC_DATABASE_URL,PAYDB_URL" required:"" placeholder:"URL"`
	Accounts        int           `help:"How many accounts to open, at least one." default:"4"`
	Payouts         int           `help:"How many payouts to create, spread over the accounts." default:"10"`
	Balance         int64         `help:"Opening balance of each account, in minor units." default:"100000"`
	Amount          int64         `help:"Amount of each payout, in minor units." default:"2500"`
	Currency        string        `help:"Currency of all of it." default:"EUR"`
	Seed            int64         `help:"Number from which every id follows. Another number makes other data." default:"1"`
	ClearingAccount string        `help:"Id of the account that postings credit; it is opened when it isn't there." env:"PAYSVC_CLEARING_ACCOUNT" default:"00000000-0000-4000-8000-000000000001" placeholder:"UUID"`
	Output          string        `help:"How to print the payouts: ${enum}." enum:"table,json" default:"table"`
	Timeout         time.Duration `help:"Time limit for all of it." default:"1m"`
}

// Help is the command's longer help.
func (c *Seed) Help() string {
	return `Synthetic data only. Seeding again with the same --seed adds what is missing and changes nothing that is there.

Example:
  export PAYSVC_DATABASE_URL=postgres://paysvc:secret@127.0.0.1:5432/paydb
  paysvc seed --accounts 2 --payouts 5
  paysvc seed --seed 7 --payouts 1 --output json`
}

// Bounds of one run.
const (
	maxSeedAccounts = 10_000
	maxSeedPayouts  = 100_000
)

// seededPayout is one payout as seed prints it.
type seededPayout struct {
	PayoutID    string `json:"payoutId"`
	AccountID   string `json:"accountId"`
	AmountMinor int64  `json:"amountMinor"`
	Currency    string `json:"currency"`
	State       string `json:"state"`
}

// Run creates the data and prints the payouts.
func (c *Seed) Run() error { return c.run(context.Background(), os.Stdout) }

func (c *Seed) run(ctx context.Context, out io.Writer) error {
	openings, drafts, clearing, err := c.plan()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	database := PayDB{DatabaseURL: c.DatabaseURL, MaxConns: 1, StoreTimeout: c.Timeout, StartupTimeout: c.Timeout}
	pool, err := database.open(ctx, "paysvc-seed")
	if err != nil {
		return err
	}
	defer pool.Close()
	store := paydb.NewPlain(pool, clearing, c.Timeout)
	payouts, err := store.Seed(ctx, payout.Currency(c.Currency), openings, drafts)
	if err != nil {
		return err
	}
	return c.print(out, payouts)
}

// plan checks the flags and works out every row; nothing has happened yet.
func (c *Seed) plan() (openings []paydb.Opening, drafts []payout.Draft, clearing uuid.UUID, err error) {
	balance, amount, err := c.amounts()
	if err != nil {
		return nil, nil, clearing, err
	}
	if clearing, err = payout.ParseID("clearing-account", c.ClearingAccount); err != nil {
		return nil, nil, clearing, err
	}
	for i := range c.Accounts {
		openings = append(openings, paydb.Opening{
			AccountID: c.id("account", i), PayoutID: c.id("opening", i), EntryID: c.id("entry", i), Balance: balance,
		})
	}
	for i := range c.Payouts {
		id := c.id("payout", i)
		drafts = append(drafts, payout.Draft{ID: id, AccountID: openings[i%c.Accounts].AccountID, Money: amount, IdempotencyKey: "seed:" + id.String()})
	}
	return openings, drafts, clearing, nil
}

// amounts also refuses what the clearing account couldn't take, since it gets all of it.
func (c *Seed) amounts() (balance, amount payout.Money, err error) {
	if c.Accounts < 1 || c.Accounts > maxSeedAccounts || c.Payouts < 0 || c.Payouts > maxSeedPayouts {
		return balance, amount, fmt.Errorf("want 1 to %d --accounts and 0 to %d --payouts", maxSeedAccounts, maxSeedPayouts)
	}
	if c.Timeout <= 0 {
		return balance, amount, errors.New("--timeout: want more than 0")
	}
	currency, err := payout.ParseCurrency(c.Currency)
	if err != nil {
		return balance, amount, err
	}
	balance = payout.Money{Minor: payout.Minor(c.Balance), Currency: currency}
	amount = payout.Money{Minor: payout.Minor(c.Amount), Currency: currency}
	if balance.Payable() != nil || amount.Payable() != nil {
		return balance, amount, errors.New("want --balance and --amount above 0")
	}
	total := payout.Money{Currency: currency}
	for range c.Payouts {
		if total, err = total.Add(amount); err != nil {
			return balance, amount, fmt.Errorf("all payouts together: %w", err)
		}
	}
	return balance, amount, nil
}

// id is the name-based UUID (RFC 9562, version 5) of one thing of this seed.
func (c *Seed) id(kind string, number int) uuid.UUID {
	return uuid.NewSHA1(uuid.NameSpaceURL, fmt.Appendf(nil, "fenceline:seed/%d/%s/%d", c.Seed, kind, number))
}

func (c *Seed) print(out io.Writer, payouts []payout.Payout) error {
	list := make([]seededPayout, 0, len(payouts))
	for _, p := range payouts {
		list = append(list, seededPayout{p.ID.String(), p.AccountID.String(), int64(p.Money.Minor), string(p.Money.Currency), string(p.State)})
	}
	if c.Output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(map[string]any{"payouts": list})
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	rows := [][5]string{{"PAYOUT", "ACCOUNT", "AMOUNT", "CURRENCY", "STATE"}}
	for _, p := range list {
		rows = append(rows, [5]string{p.PayoutID, p.AccountID, strconv.FormatInt(p.AmountMinor, 10), p.Currency, p.State})
	}
	for _, r := range rows {
		if _, err := fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", r[0], r[1], r[2], r[3], r[4]); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
