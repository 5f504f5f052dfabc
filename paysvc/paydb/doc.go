// Package paydb keeps the payment system's data in PostgreSQL, in the tables of C1 §1.5: one store for each role that uses the
// database. A statement is a named constant, with the number of rows that it gives and the argument for its safety above it.
package paydb
