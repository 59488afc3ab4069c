// Tests the reader of rates files.
#include <fmt/format.h>
#include <fsdp/error.h>
#include <fsdp/rates.h>

#include <fstream>
#include <string>

#include "support/scratch_folder.h"
#include "support/torch_doctest.h"

using namespace fsdp;

namespace {

const std::string kGood = R"({"format": "fsdp rates 1", "machine": "m", "source": "s",
  "device": {"copy_gbps": 2000, "host_ns_per_call": 0},
  "products": {"bfloat16": [[64, 1e14], [4096, 5e14]]}, "attention": {"bfloat16": 2e14},
  "peak": {"bfloat16": 9.894e14},
  "link": [{"scope": "host", "gbps": 360, "base_ns": 8400, "step_ns": 3400},
           {"scope": "net", "gbps": 350, "step_ns": 14000}],
  "contention": 0.5, "origins": {"products": "published"},
  "residuals": [{"rows": "r", "count": 3, "median": 0.02, "p90": 0.05, "worst": 0.1}]})";

std::string with(const std::string& old, const std::string& other) {
  std::string text = kGood;
  const size_t at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), other);
}

std::string refusal(const std::string& text) {
  try {
    parse_rates(text, "rates.json");
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    CHECK(error.text().where.starts_with("rates.json"));
    return error.text().what;
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a rates file is read with its units") {
  const Rates rates = parse_rates(kGood, "rates.json");
  CHECK(rates.copy == 2e12);
  CHECK(rates.host.bytes == 3.6e11);
  CHECK(rates.net.step_ns == 14000);
  CHECK(rates.base_ns == 8400);
  REQUIRE(rates.find(torch::kBFloat16) != nullptr);
  CHECK(rates.find(torch::kBFloat16)->products.size() == 2);
  CHECK(rates.find(torch::kBFloat16)->peak == 9.894e14);
  CHECK(rates.find(torch::kFloat32) == nullptr);
  CHECK(rates.residuals.at(0).count == 3);
  CHECK(rates.thin_rows == 0);
  const std::string thin = with("\"contention\"", R"("basis": "thin", "rows": 2, "contention")");
  CHECK(parse_rates(thin, "rates.json").thin_rows == 2);
  CHECK(rates.origins.at("products") == "published");
  CHECK_FALSE(rates.origins.contains("copy"));
  CHECK(rates == parse_rates(kGood, "other.json"));
}

TEST_CASE("measured rates are read, and written as they were read") {
  std::string text =
      with(R"("host_ns_per_call": 0)", R"("host_ns_per_call": 900, "host_ns_per_kernel": 4000)");
  const auto add = [&](const std::string& old, const std::string& other) {
    text.replace(text.find(old), old.size(), other);
  };
  add(R"("step_ns": 3400})", R"("step_ns": 3400, "core": 0.5, "gathers": [[64, 900], [1e6, 2e5]],
                                "reductions": [[64, 800]]})");
  add(R"("contention": 0.5,)", R"json("contention": 0.5,
      "cpu": {"cores": 8, "ranks": 2, "threads": 4}, "kernels": {"update": 11.5},
      "operators": {"aten::mm(Float[2,2] Float[2,2])": 1200},)json");
  const Rates rates = parse_rates(text, "rates.json");
  CHECK(rates.host_ns_per_kernel == 4000);
  CHECK(rates.host.core == 0.5);
  CHECK(rates.host.gathers.at(1).ns == 2e5);
  CHECK(rates.host.reductions.at(0).bytes == 64);
  CHECK(rates.cpu.threads == 4);
  CHECK(rates.kernels.at("update") == 1.15e10);
  CHECK(rates.operators.at("aten::mm(Float[2,2] Float[2,2])") == 1200);
  const Rates again = parse_rates(to_json(rates), "written");
  CHECK(to_json(again) == to_json(rates));
  CHECK(again.net.bytes == rates.net.bytes);
  CHECK(again.residuals.at(0).worst == 0.1);
  CHECK(again.find(torch::kBFloat16)->attention == 2e14);

  CHECK(refusal(with(R"("contention")", R"("kernels": {"relu": 1}, "contention")")) ==
        "\"kernels\" has an unknown kernel \"relu\"");
  CHECK(refusal(with(R"("step_ns": 3400)", R"("step_ns": 3400, "gathers": [[64, 900]])")) ==
        "\"link\" has no \"reductions\"");
  CHECK(
      refusal(with(R"("step_ns": 3400)",
                   R"("step_ns": 3400, "gathers": [[64, 9], [32, 9]], "reductions": [[1, 1]])")) ==
      "\"gathers\" of \"link\" is not in ascending order");
}

TEST_CASE("links between hosts are those of fsdp-doctor's slowest connection") {
  const ScratchFolder folder;
  const std::string file = folder / "links.json";
  int version = 1;
  const auto set = [&](const std::string& links, const std::string& text = kGood) -> std::string {
    std::ofstream(file) << fmt::format(R"({{"version": {}, "hosts": [], "links": [{}]}})", version,
                                       links);
    Rates rates = parse_rates(text, "rates.json");
    try {
      set_link_of_hosts(rates, file);
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCorruptData);
      CHECK(error.text().hint.find("fsdp-doctor") != std::string::npos);
      return error.text().what;
    }
    CHECK(rates.origins.at("net") == "measured");
    return fmt::format("{:.0f} in {:.0f} ns", rates.net.bytes, rates.net.step_ns);
  };
  const std::string fast =
      R"({"from": 0, "to": 1, "latency_us": 20, "rates": [{"message_bytes": 4096,
          "bytes_per_second": 1e8}, {"message_bytes": 65536, "bytes_per_second": 3e9}]})";
  const std::string slow = R"({"from": 1, "to": 0, "latency_us": 30,
                               "rates": [{"message_bytes": 65536, "bytes_per_second": 2e9}]})";
  CHECK(set(fast + ", " + slow) == "2000000000 in 30000 ns");
  CHECK(set("") == "the report has no connection");
  CHECK(set(R"({"from": 1, "to": 0, "latency_us": 30, "rates": []})") ==
        "a connection was not measured");
  CHECK(set(fast + R"(, {"from": 1, "to": 0, "failure": "refused"})") ==
        "the connection from host 1 to host 0 failed");
  CHECK(set("3") == "\"links\" is not an object");
  CHECK(set(fast, with(R"({"scope": "host", "gbps": 360, "base_ns": 8400, "step_ns": 3400},
           {"scope": "net", "gbps": 350, "step_ns": 14000})",
                       "")) == "the rates have no link of the scope host");
  version = 2;
  CHECK(set(fast) == "the version is 2, expected 1");
}

TEST_CASE("a bad rates file is refused with one line that names the field") {
  CHECK(refusal(kGood) == "accepted");
  CHECK(refusal(with("fsdp rates 1", "fsdp rates 2")) ==
        "the format is 'fsdp rates 2', expected 'fsdp rates 1'");
  CHECK(refusal(with("2000", "0")) ==
        "\"copy_gbps\" of \"device\" is 0, expected a number above 0");
  CHECK(refusal(with("360", "-1")) == "\"gbps\" of \"link\" is -1, expected a number above 0");
  CHECK(
      refusal(with("5e14", "-5e14")) ==
      "the second number of a pair in \"bfloat16\" of \"products\" is -500000000000000.0, expected "
      "a number above 0");
  CHECK(refusal(with("[4096,", "[64,")) ==
        "\"bfloat16\" of \"products\" is not in ascending order");
  CHECK(refusal(with("\"contention\": 0.5,", "")) == "the file has no \"contention\"");
  CHECK(refusal(with("\"machine\": \"m\"", "\"machine\": 3")) ==
        "\"machine\" of the file is not a text");
  CHECK(refusal(with("bfloat16", "bf16")) ==
        "\"bf16\" is no element type, expected float32, bfloat16, float16 or float64");
  CHECK(refusal(with("\"contention\"", "\"colour\": [], \"contention\"")) ==
        "the file has an unknown field \"colour\"");
  CHECK(refusal(with("\"net\"", "\"host\"")) == "two links have the scope host");
  const auto with_basis = [](const std::string& fields) {
    return with("\"contention\"", fields + ", \"contention\"");
  };
  CHECK(refusal(with_basis(R"("basis": "solid", "rows": 2)")) ==
        "\"basis\" of the file is 'solid', expected thin");
  CHECK(refusal(with_basis(R"("basis": "thin")")) == "the file has no \"rows\"");
  CHECK(refusal(with_basis(R"("rows": 2)")) == "the file has \"rows\", but no \"basis\"");
  CHECK(refusal(with_basis(R"("basis": "thin", "rows": 0)")) ==
        "\"rows\" of the file is 0, expected a whole number above 0");
  CHECK(refusal(with_basis(R"("basis": "thin", "rows": 1.5)")) ==
        "\"rows\" of the file is 1.5, expected a whole number above 0");
  CHECK(refusal(with("\"published\"", "\"guessed\"")) ==
        "the origin of products is 'guessed', expected measured, played, published or assumed");
  CHECK(refusal(with("{\"products\": \"p", "{\"product\": \"p")) ==
        "\"origins\" has an unknown field \"product\"");
  CHECK(refusal("[]") == "the file is not an object");
  for (size_t size = 0; size < kGood.size(); size += 7) {
    CAPTURE(size);
    CHECK(refusal(kGood.substr(0, size)) != "accepted");
  }
}
