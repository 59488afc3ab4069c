// Parses the command line of a program, and refuses wrong usage.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>

#include "fsdp/error.h"
#include "programs/standard_output.h"

namespace fsdp {

// Throws InvalidArgument kUsage.
[[noreturn]] inline void refuse_usage(std::string what, std::string hint) {
  throw InvalidArgument({.what = std::move(what), .where = "command line", .hint = std::move(hint)},
                        ExitCode::kUsage);
}

// Parses the command line into the variables of `app` and returns true. For --help, prints the help
// and returns false. Errors: InvalidArgument kUsage, with `hint`; IoError kIoError if the help
// cannot be written.
inline bool parse_or_help(CLI::App& app, int argc, char** argv, std::string hint) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    print_all("help", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    refuse_usage(error.what(), std::move(hint));
  }
}

}  // namespace fsdp
