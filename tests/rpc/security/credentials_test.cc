#include <weft/rpc/security/credentials.h>

#include <weft/rpc/testing/test_authority.h>

#include "tests/support/errors.h"
#include "tests/support/tls.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <regex>

namespace weft::test::credentials_test {
namespace {

using namespace std::chrono_literals;
using rpc::CredentialOptions;
using rpc::Credentials;

const std::string secret_bytes = "sixteen bytes and some more";

// Created by `openssl genpkey -algorithm ed25519 -aes256`, with the password "secret".
const std::string encrypted_key =
    "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
    "MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAi+Xcf2ETSx7wICCAAw\n"
    "DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEM5EPc/rmzaZfKTaZX00Ra4EQNC8\n"
    "/YG0O30mbVteWlXXdWvqB+VVKiYYW+RfAoZWbnkopGTzScEHS52g1YgNhUWP+hoH\n"
    "0GyeNKDmuZd6hzn3Uss=\n"
    "-----END ENCRYPTED PRIVATE KEY-----\n";

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialsTest() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-credentials-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~CredentialsTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text, ::mode_t mode = 0600) const {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  static std::string why(const CredentialOptions& options) {
    EXPECT_EQ(kind_of([&] { return Credentials(options).describe(); }), rpc::ErrorKind::invalid_argument);
    return message_of([&] { return Credentials(options).describe(); });
  }
  static bool meet(const Credentials& client, const Credentials& server) {
    return TlsPair(client, server).run().met();
  }

  std::filesystem::path folder_;
  const TestAuthority authority_;
  const CredentialOptions good_ = authority_.credentials("server");
};

TEST_F(CredentialsTest, DescribeAndExpiry) {
  auto options = good_;
  const auto before = std::chrono::system_clock::now();
  const Credentials certificate(options);
  ASSERT_TRUE(certificate.expires());
  EXPECT_GT(*certificate.expires(), before + 59min);
  EXPECT_LT(*certificate.expires(), before + 61min);
  EXPECT_TRUE(std::regex_match(
      certificate.describe(),
      std::regex("certificate 'server' until \\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d UTC")))
      << certificate.describe();
  options.secrets = {{.id = "job7", .bytes = secret_bytes}, {.id = "job6", .bytes = secret_bytes}};
  EXPECT_NE(Credentials(options).describe().find(" UTC, secrets 'job7', 'job6'"), std::string::npos);
  const Credentials secret(secret_options("job7", secret_bytes));
  EXPECT_EQ(secret.describe(), "secret 'job7'");
  EXPECT_FALSE(secret.expires());
  EXPECT_EQ(secret.describe().find(secret_bytes), std::string::npos);
}

TEST_F(CredentialsTest, FromFiles) {
  const Credentials files({.certificate_file = file("cert.pem", good_.certificate_pem, 0644),
                           .key_file = file("key.pem", good_.key_pem),
                           .trust_file = file("trust.pem", good_.trust_pem, 0644)});
  const Credentials text(good_);
  EXPECT_TRUE(meet(files, text));
  EXPECT_TRUE(meet(text, files));

  const Credentials bytes(secret_options("job7", secret_bytes));
  for (const std::string end : {"", "\n", "\r\n"}) {
    const Credentials secret({.secrets = {{.id = "job7", .file = file("secret", secret_bytes + end)}}});
    EXPECT_TRUE(meet(bytes, secret));
  }
  const Credentials other({.secrets = {{.id = "job7", .file = file("secret", secret_bytes + "\n\n")}}});
  EXPECT_FALSE(meet(bytes, other));  // one line break is left out, no more
}

TEST_F(CredentialsTest, AFileOfSecrets) {
  const Credentials job(secret_options("job", "0123456789abcdef")), old(secret_options("old", secret_bytes));
  const Credentials bare({.secret_file = file("one", "0123456789abcdef\n")});
  EXPECT_EQ(bare.describe(), "secret 'job'");
  EXPECT_TRUE(meet(job, bare));
  const Credentials two(
      {.secret_file = file("two", "# rotated in May\n\n job  0123456789abcdef \r\nold\t" + secret_bytes)});
  EXPECT_EQ(two.describe(), "secrets 'job', 'old'");
  EXPECT_TRUE(meet(job, two));
  EXPECT_TRUE(meet(old, two));
  EXPECT_TRUE(meet(two, job));
  EXPECT_FALSE(meet(two, old));

  const auto refused = [&](const std::string& text) { return why({.secret_file = file("bad", text)}); };
  EXPECT_NE(refused("# nothing\n").find("there is no secret in it"), std::string::npos);
  EXPECT_NE(refused("a 0123456789abcdef\na 0123456789abcdeg").find("two secrets with the id 'a'"),
            std::string::npos);
  EXPECT_NE(
      refused("a 0123456789abcdef\nb 0123456789abcdef\nc 0123456789abcdef").find("expected at most two"),
      std::string::npos);
  EXPECT_NE(refused("tooshort").find("has 8 bytes, expected at least 16 random bytes"), std::string::npos);
}

TEST_F(CredentialsTest, MissingOptionsAreNamed) {
  EXPECT_EQ(why({}), "credentials without a certificate and without a secret");
  auto options = good_;
  options.key_pem.clear();
  EXPECT_EQ(why(options), "credentials: certificate_pem: its key is missing: key_file");
  options = good_;
  options.trust_pem.clear();
  EXPECT_EQ(why(options), "credentials: certificate_pem: the authorities to trust are missing: trust_file");
  options = good_;
  options.certificate_pem.clear();
  EXPECT_EQ(why(options), "credentials: key_pem: the certificate of this key is missing: certificate_file");
  EXPECT_EQ(why({.trust_pem = good_.trust_pem}),
            "credentials: trust_pem: certificate_file is missing: both sides must authenticate");
  options = good_;
  options.certificate_file = folder_ / "none.pem";
  EXPECT_EQ(why(options),
            "credentials: certificate_file: the same is also given as text, expected one of them");
  options.certificate_pem.clear();
  EXPECT_EQ(why(options),
            "credentials: certificate_file '" + options.certificate_file + "': No such file or directory");
  options.certificate_file = folder_;
  EXPECT_NE(why(options).find("it is not a regular file"), std::string::npos);
  // An empty certificate file is an error. Otherwise an agent that also has a secret would continue without
  // its certificate.
  EXPECT_NE(why({.certificate_file = file("empty", ""), .secrets = {{.id = "a", .bytes = secret_bytes}}})
                .find("it is empty"),
            std::string::npos);
  options.certificate_file = file("large", std::string((1 << 20) + 1, 'x'));
  EXPECT_NE(why(options).find("it is larger than 1 MiB"), std::string::npos);
  EXPECT_NE(why({.secrets = {{.id = "a", .bytes = secret_bytes, .file = "b"}}})
                .find("its bytes are also given, expected one of them"),
            std::string::npos);
  EXPECT_NE(why({.secrets = {{.id = "a", .bytes = secret_bytes}}, .secret_file = "b"})
                .find("secrets are also given, expected one of them"),
            std::string::npos);
}

TEST_F(CredentialsTest, FilesThatOthersCanOpenAreRefused) {
  auto options = good_;
  options.key_pem.clear();
  options.key_file = file("key.pem", good_.key_pem, 0604);
  EXPECT_EQ(why(options), "credentials: key_file '" + options.key_file +
                              "': other users of this host can open it: chmod o= " + options.key_file);
  ::chmod(options.key_file.c_str(), 0640);  // a group is the administrator's choice
  EXPECT_EQ(Credentials(options).describe(), Credentials(good_).describe());
  EXPECT_NE(why({.secret_file = file("job", secret_bytes, 0644)}).find("other users of this host"),
            std::string::npos);
  EXPECT_NE(why({.secrets = {{.id = "a", .file = file("job", secret_bytes, 0602)}}})
                .find("other users of this host"),
            std::string::npos);
}

TEST_F(CredentialsTest, InvalidCertificatesAreRefused) {
  const auto refused = [&](TestAuthority::Request request) {
    return why(authority_.credentials_for(request));
  };
  auto request = TestAuthority::agent("worker1");
  request.begins = -2h;
  request.ends = -1h;
  EXPECT_TRUE(std::regex_search(
      refused(request),
      std::regex("certificate_pem: the certificate of 'weft://worker1', .* expired at \\d{4}-.* UTC")))
      << refused(request);
  request.begins = 1h;
  request.ends = 2h;
  EXPECT_NE(refused(request).find("is not valid before 2"), std::string::npos);
  request = TestAuthority::agent("worker1");
  request.key = TestAuthority::KeyKind::weak_rsa;
  EXPECT_NE(refused(request).find("certificate_pem: OpenSSL refuses the certificate: ee key too small"),
            std::string::npos)
      << refused(request);
  EXPECT_NE(refused({}).find("the certificate names no agent"), std::string::npos);

  auto options = good_;
  options.key_pem = authority_.credentials("other").key_pem;
  EXPECT_EQ(why(options),
            "credentials: key_pem: the key does not match the certificate in credentials: certificate_pem");
  options = good_;
  options.certificate_pem = "rubbish";
  EXPECT_EQ(why(options), "credentials: certificate_pem: there is no certificate (PEM) in it");
  options.certificate_pem = good_.key_pem;
  EXPECT_NE(why(options).find("there is no certificate (PEM) in it"), std::string::npos);
  options.certificate_pem = good_.certificate_pem;
  options.certificate_pem[options.certificate_pem.size() / 2] = '!';
  EXPECT_NE(why(options).find("a certificate in it cannot be read"), std::string::npos);
  options = good_;
  options.key_pem = good_.certificate_pem;
  EXPECT_NE(why(options).find("there is no private key (PEM) in it"), std::string::npos);
  options = good_;
  options.trust_pem = "\n";
  EXPECT_NE(why(options).find("trust_pem: there is no certificate (PEM) in it"), std::string::npos);
  options.trust_pem = good_.trust_pem + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
  EXPECT_NE(why(options).find("trust_pem: a certificate in it cannot be read"), std::string::npos);
}

TEST_F(CredentialsTest, AnEncryptedKeyIsRefusedWithoutAPrompt) {
  auto options = good_;
  options.key_pem = encrypted_key;
  EXPECT_EQ(why(options), "credentials: key_pem: the key is encrypted, expected one without a password");
}

TEST_F(CredentialsTest, InvalidSecretsAreRefused) {
  EXPECT_EQ(why(secret_options("job7", "fifteen bytes..")),
            "credentials: secret 'job7': the secret 'job7' has 15 bytes, expected at least 16 random "
            "bytes");
  EXPECT_NE(why(secret_options("job7", "")).find("has 0 bytes"), std::string::npos);
  EXPECT_NE(why(secret_options("", secret_bytes)).find("is not 1 to 128 printable"), std::string::npos);
  EXPECT_NE(why(secret_options(std::string(129, 'a'), secret_bytes)).find("is not 1 to 128"),
            std::string::npos);
  EXPECT_NE(why(secret_options("a b", secret_bytes)).find("is not 1 to 128"), std::string::npos);
  EXPECT_EQ(why(secret_options("a\nb", secret_bytes)).find('\n'), std::string::npos);
  EXPECT_EQ(Credentials(secret_options(std::string(128, 'a'), secret_bytes)).describe().size(), 128 + 9u);
}

// --- Reloading ---

TEST_F(CredentialsTest, ReloadReadsTheCurrentContentsOfTheFiles) {
  const TestAuthority next("the next authority");
  const auto fresh = next.credentials("server");
  const CredentialOptions options{.certificate_file = file("cert.pem", good_.certificate_pem),
                                  .key_file = file("key.pem", good_.key_pem),
                                  .trust_file = file("trust.pem", good_.trust_pem)};
  Credentials credentials(options);
  const Credentials before(good_), after(fresh);
  TlsPair live(before, credentials);
  ASSERT_TRUE(live.run().met());

  file("cert.pem", fresh.certificate_pem);
  EXPECT_TRUE(meet(before, credentials));  // the files are not read before reload()
  // If only one of the files has changed, reload() fails and changes nothing.
  EXPECT_EQ(kind_of([&] { return credentials.reload(), 0; }), rpc::ErrorKind::invalid_argument);
  EXPECT_TRUE(meet(before, credentials));
  file("key.pem", fresh.key_pem);
  file("trust.pem", fresh.trust_pem);
  credentials.reload();
  EXPECT_FALSE(meet(before, credentials));
  EXPECT_TRUE(meet(after, credentials));
  EXPECT_TRUE(meet(credentials, after));

  live.client->send(" goes on");
  live.server->send(" goes on");
  live.loop->run();
  EXPECT_EQ(live.server->received(), std::string(TlsPair::from_client) + " goes on");
  EXPECT_EQ(live.client->received(), std::string(TlsPair::from_server) + " goes on");
}

TEST_F(CredentialsTest, AHandshakeKeepsItsInitialCredentials) {
  Credentials server(good_);
  const Credentials client(authority_.credentials("worker1"));
  TlsPair pair(client, server);
  pair.client->start();
  pair.server->start();
  server.replace(TestAuthority("another").credentials("server"));
  pair.loop->run();
  EXPECT_TRUE(pair.met()) << pair.client->explained();
}

TEST_F(CredentialsTest, ReloadReadsTheOptionsOfTheLastReplace) {
  Credentials credentials(good_);
  EXPECT_TRUE(kind_of([&] { return credentials.replace({}), 0; }).has_value());
  EXPECT_TRUE(credentials.expires());
  credentials.replace({.secret_file = file("job", "a " + secret_bytes)});
  EXPECT_EQ(credentials.describe(), "secret 'a'");
  file("job", "b " + secret_bytes);
  credentials.reload();
  EXPECT_EQ(credentials.describe(), "secret 'b'");
}

// The agents of a job change a secret one after the other. At each moment all agents can connect to each
// other.
TEST_F(CredentialsTest, ASecretIsChangedWithoutAGap) {
  const std::string old_line = "may " + secret_bytes + "\n", new_line = "june another secret of 25 byte\n";
  const std::vector<std::string> steps{old_line, old_line + new_line, new_line + old_line, new_line};
  constexpr int agents = 3;
  std::vector<std::unique_ptr<Credentials>> job;
  std::vector<std::string> paths;
  for (int i = 0; i < agents; ++i) {
    paths.push_back(file("job" + std::to_string(i), steps[0]));
    job.push_back(std::make_unique<Credentials>(CredentialOptions{.secret_file = paths.back()}));
  }
  TlsPair live(*job[0], *job[1]);
  ASSERT_TRUE(live.run().met());
  for (std::size_t step = 1; step < steps.size(); ++step) {
    for (int changed = 0; changed < agents; ++changed) {
      file("job" + std::to_string(changed), steps[step]);
      job[static_cast<std::size_t>(changed)]->reload();
      for (const auto& client : job)
        for (const auto& server : job) EXPECT_TRUE(meet(*client, *server)) << "step " << step;
    }
  }
  live.client->send("!");
  live.loop->run();
  EXPECT_EQ(live.server->received(), std::string(TlsPair::from_client) + "!");
  EXPECT_FALSE(meet(Credentials(secret_options("may", secret_bytes)), *job[0]));
}

}  // namespace
}  // namespace weft::test::credentials_test
