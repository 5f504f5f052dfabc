package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// clientFlags say how a command reaches lockd.
type clientFlags struct {
	URL       string        `help:"Where lockd is: http://, https:// or unix:/path." name:"url" env:"LOCKD_URL" default:"http://127.0.0.1:7400"`
	TokenFile string        `help:"File with the bearer token." env:"LOCKD_TOKEN_FILE" placeholder:"FILE"`
	CAFile    string        `help:"Certificates of the authorities to believe, in PEM, instead of the system's." name:"ca-file" env:"LOCKD_CA_FILE" placeholder:"FILE"`
	CertFile  string        `help:"Client certificate, in PEM." env:"LOCKD_CERT_FILE" placeholder:"FILE"`
	KeyFile   string        `help:"Its key, in PEM." env:"LOCKD_KEY_FILE" placeholder:"FILE"`
	Timeout   time.Duration `help:"Time limit for one call, on top of the time that lockd is asked to wait." default:"10s"`
	Output    string        `help:"${enum}: for people or for programs." enum:"text,json" default:"text" short:"o"`
}

// options reads the files that the flags name.
func (f *clientFlags) options() (lockclient.Options, error) {
	o := lockclient.Options{URL: f.URL, TokenFile: f.TokenFile, Timeout: f.Timeout}
	if f.Timeout <= 0 {
		return o, fmt.Errorf("%w: timeout: want more than 0", lock.ErrInvalid)
	}
	if f.CAFile == "" && f.CertFile == "" && f.KeyFile == "" {
		return o, nil
	}
	o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return o, fmt.Errorf("ca-file: %w", err)
		}
		o.TLS.RootCAs = x509.NewCertPool()
		if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return o, fmt.Errorf("ca-file %s: no certificate in PEM", f.CAFile)
		}
	}
	if f.CertFile != "" || f.KeyFile != "" {
		pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
		if err != nil {
			return o, fmt.Errorf("cert-file and key-file: %w", err)
		}
		o.TLS.Certificates = []tls.Certificate{pair}
	}
	return o, nil
}

// connect returns a client that acts as this process.
func (f *clientFlags) connect(command string) (*lockclient.Client, error) {
	o, err := f.options()
	if err != nil {
		return nil, err
	}
	owner, err := processName(command)
	if err != nil {
		return nil, err
	}
	return lockclient.Connect(owner, o)
}

// processName is the owner that a command acts as unless it is told another.
func processName(command string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("host name for the default owner: %w", err)
	}
	return fmt.Sprintf("%s-%.40s-%d", command, host, os.Getpid()), nil
}

// exitError is an error with an exit code of its own. Without a text nothing is printed: the text was the child's.
type exitError struct {
	code int
	text string
}

func (e *exitError) Error() string { return e.text }

// exitCode is what the process ends with.
func exitCode(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	return 1
}

// printJSON writes one value as a line.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(v)
}

// print writes a result, for people or for programs.
func (f *clientFlags) print(w io.Writer, v any, text string) error {
	if f.Output == "json" {
		return printJSON(w, v)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// failure is what a command ends with. For programs lockd's own envelope goes to standard error, or one of the same shape.
func (f *clientFlags) failure(err error) error {
	if err == nil || f.Output != "json" {
		return err
	}
	envelope := lockapi.Error{Code: "NO_ANSWER", Message: err.Error()}
	if refusal, ok := errors.AsType[*lockclient.Refusal](err); ok {
		envelope = refusal.Envelope
	}
	if printErr := printJSON(os.Stderr, envelope); printErr != nil {
		return printErr
	}
	return &exitError{code: 1}
}
