package main

import (
	"bufio"
	"strings"
	"testing"

	"fenceline/internal/pgserver/pgtest"
)

// The package is known as one whose tests need a server by this import.
func TestMain(m *testing.M) { pgtest.Main(m) }

func reading(text string) *client { return &client{reader: bufio.NewReader(strings.NewReader(text))} }
