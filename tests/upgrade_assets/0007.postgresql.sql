--
-- PostgreSQL database dump
--


-- Dumped from database version 18.4
-- Dumped by pg_dump version 18.4

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET transaction_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: atlas_cells; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.atlas_cells (
    hardware text NOT NULL,
    kind text NOT NULL,
    shape_class text NOT NULL,
    dtype text NOT NULL,
    target text NOT NULL,
    regions integer NOT NULL,
    fastest integer NOT NULL,
    log_sum double precision NOT NULL,
    log_square_sum double precision NOT NULL,
    models json NOT NULL
);


--
-- Name: atlas_state; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.atlas_state (
    name character varying(16) NOT NULL,
    counted_to text NOT NULL,
    is_whole boolean NOT NULL
);


--
-- Name: blobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.blobs (
    sha256 character varying(64) NOT NULL,
    size_bytes bigint NOT NULL,
    media_type text NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: claims; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.claims (
    digest character varying(64) NOT NULL,
    owner text,
    fence bigint NOT NULL,
    lease_until double precision NOT NULL
);


--
-- Name: collage_schema; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.collage_schema (
    version_num character varying(32) NOT NULL
);


--
-- Name: cost_operators; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.cost_operators (
    digest character varying(64) NOT NULL,
    op_type text NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: costs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.costs (
    digest character varying(64) NOT NULL,
    sub_graph text NOT NULL,
    target text NOT NULL,
    backend text NOT NULL,
    backend_version text NOT NULL,
    hardware text NOT NULL,
    protocol text NOT NULL,
    outcome character varying(16) NOT NULL,
    latency_us double precision,
    spread_us double precision,
    samples_us json NOT NULL,
    node_times_us json NOT NULL,
    reason text,
    error double precision,
    compile_s double precision,
    peak_memory_bytes bigint,
    yardstick_us double precision,
    host text NOT NULL,
    op_types text NOT NULL,
    node_count integer NOT NULL,
    model_sha256 character varying(64),
    versions json NOT NULL,
    created_at timestamp with time zone NOT NULL,
    structure character varying(64),
    work double precision,
    CONSTRAINT ck_costs_outcome CHECK (((((outcome)::text = 'measured'::text) AND (latency_us > (0)::double precision)) OR (((outcome)::text = 'infeasible'::text) AND (latency_us IS NULL))))
);


--
-- Name: gains; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.gains (
    hardware text NOT NULL,
    model character varying(64) NOT NULL,
    targets text NOT NULL,
    promised double precision,
    gained double precision NOT NULL,
    used json NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: hardware; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.hardware (
    fingerprint text NOT NULL,
    description json NOT NULL
);


--
-- Name: idempotency_keys; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.idempotency_keys (
    owner text NOT NULL,
    key text NOT NULL,
    request_sha256 character varying(64) NOT NULL,
    job_id character varying(32) NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: job_events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.job_events (
    job_id character varying(32) NOT NULL,
    seq integer NOT NULL,
    kind text NOT NULL,
    data json NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: job_labels; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.job_labels (
    job_id character varying(32) NOT NULL,
    label text NOT NULL
);


--
-- Name: jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.jobs (
    number bigint NOT NULL,
    id character varying(32) NOT NULL,
    owner text NOT NULL,
    state character varying(16) NOT NULL,
    spec json NOT NULL,
    model_sha256 character varying(64),
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    worker text,
    attempt integer NOT NULL,
    lease_until double precision,
    cancel_requested boolean NOT NULL,
    event_count integer NOT NULL,
    progress json,
    reason text,
    artifact_sha256 character varying(64),
    report_sha256 character varying(64),
    plan_sha256 character varying(64),
    name text DEFAULT ''::text NOT NULL,
    note text,
    inputs_sha256 character varying(64),
    normalized_sha256 character varying(64),
    parked_until double precision,
    webhook_url text,
    webhook_state character varying(16),
    webhook_due double precision,
    webhook_tries integer DEFAULT 0 NOT NULL,
    kind character varying(16) DEFAULT 'tune'::character varying NOT NULL,
    CONSTRAINT ck_jobs_state CHECK (((state)::text = ANY ((ARRAY['queued'::character varying, 'running'::character varying, 'done'::character varying, 'failed'::character varying, 'cancelled'::character varying])::text[])))
);


--
-- Name: jobs_number_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.jobs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: jobs_number_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.jobs_number_seq OWNED BY public.jobs.number;


--
-- Name: model_forms; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.model_forms (
    sha256 character varying(64) NOT NULL,
    normalized_sha256 character varying(64) NOT NULL
);


--
-- Name: models; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.models (
    number bigint NOT NULL,
    sha256 character varying(64) NOT NULL,
    owner text NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: models_number_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.models_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: models_number_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.models_number_seq OWNED BY public.models.number;


--
-- Name: observations; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.observations (
    hardware text NOT NULL,
    target text NOT NULL,
    sub_graph text NOT NULL,
    version text NOT NULL,
    model character varying(64) NOT NULL,
    is_whole boolean NOT NULL,
    latency_us double precision NOT NULL,
    edition integer NOT NULL,
    features json NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: queue_turns; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.queue_turns (
    owner text NOT NULL,
    turn bigint NOT NULL
);


--
-- Name: regions; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.regions (
    sub_graph text NOT NULL,
    kind text NOT NULL,
    shape_class text NOT NULL,
    dtype text NOT NULL
);


--
-- Name: tokens; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tokens (
    id character varying(32) NOT NULL,
    name text NOT NULL,
    secret_sha256 character varying(64) NOT NULL,
    scopes text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    active_jobs integer,
    running_jobs integer,
    stored_bytes bigint,
    requests_per_minute integer
);


--
-- Name: tunings; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.tunings (
    digest character varying(64) NOT NULL,
    hardware text NOT NULL,
    limit_s double precision NOT NULL,
    plan text NOT NULL,
    report json NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: watch_runs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.watch_runs (
    number bigint NOT NULL,
    watch_id character varying(32) NOT NULL,
    job_id character varying(32) NOT NULL,
    environment text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    verdict character varying(16) NOT NULL,
    result json NOT NULL,
    measured json
);


--
-- Name: watch_runs_number_seq; Type: SEQUENCE; Schema: public; Owner: -
--

CREATE SEQUENCE public.watch_runs_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;


--
-- Name: watch_runs_number_seq; Type: SEQUENCE OWNED BY; Schema: public; Owner: -
--

ALTER SEQUENCE public.watch_runs_number_seq OWNED BY public.watch_runs.number;


--
-- Name: watches; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.watches (
    id character varying(32) NOT NULL,
    owner text NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    job_id character varying(32) NOT NULL,
    artifact_sha256 character varying(64),
    targets json NOT NULL,
    webhook_url text,
    due double precision,
    problem text
);


--
-- Name: jobs number; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs ALTER COLUMN number SET DEFAULT nextval('public.jobs_number_seq'::regclass);


--
-- Name: models number; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.models ALTER COLUMN number SET DEFAULT nextval('public.models_number_seq'::regclass);


--
-- Name: watch_runs number; Type: DEFAULT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.watch_runs ALTER COLUMN number SET DEFAULT nextval('public.watch_runs_number_seq'::regclass);


--
-- Data for Name: atlas_cells; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: atlas_state; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.atlas_state VALUES ('cells', '', true);


--
-- Data for Name: blobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.blobs VALUES ('efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef', 1000, 'application/octet-stream', '2026-11-29 09:13:52.700873+00');


--
-- Data for Name: claims; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.claims VALUES ('79a63074dc796072f72706cfd5edaa48d94492159bc9e36163d42bf59f2d8f30', NULL, 1, 0);
INSERT INTO public.claims VALUES ('37aea0e455bb20b6d3340ecc29cacf264856689af7f9dfea89ec5c45a785ee7d', NULL, 1, 0);
INSERT INTO public.claims VALUES ('f9bdceed0cecdc6c1da2bbda55f1af66801f1aa121a093207681c1fe049eb10a', NULL, 1, 0);
INSERT INTO public.claims VALUES ('f6c6b292a5a84d628cca6cedaab45970ccb95a9647c2aaf8b073f41a99a0db54', 'dead owner', 1, 1795943632.69625);


--
-- Data for Name: collage_schema; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.collage_schema VALUES ('0007');


--
-- Data for Name: cost_operators; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.cost_operators VALUES ('37aea0e455bb20b6d3340ecc29cacf264856689af7f9dfea89ec5c45a785ee7d', 'Conv', '2026-01-01 12:00:02.123456+00');
INSERT INTO public.cost_operators VALUES ('37aea0e455bb20b6d3340ecc29cacf264856689af7f9dfea89ec5c45a785ee7d', 'Relu', '2026-01-01 12:00:02.123456+00');
INSERT INTO public.cost_operators VALUES ('f9bdceed0cecdc6c1da2bbda55f1af66801f1aa121a093207681c1fe049eb10a', 'Conv', '2026-01-01 12:00:01.123456+00');
INSERT INTO public.cost_operators VALUES ('f9bdceed0cecdc6c1da2bbda55f1af66801f1aa121a093207681c1fe049eb10a', 'Relu', '2026-01-01 12:00:01.123456+00');


--
-- Data for Name: costs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.costs VALUES ('79a63074dc796072f72706cfd5edaa48d94492159bc9e36163d42bf59f2d8f30', 'sub-graph 3', 'openvino -precision=bf16', 'openvino', '2026.4.1', 'hardware-a', 'protocol-1', 'infeasible', NULL, NULL, '[]', '[]', 'crash: signal 11', NULL, NULL, NULL, NULL, 'host-a', '', 0, NULL, '{}', '2026-01-01 12:00:03.123456+00', 'abababababababababababababababababababababababababababababababab', 0.30000000000000004);
INSERT INTO public.costs VALUES ('37aea0e455bb20b6d3340ecc29cacf264856689af7f9dfea89ec5c45a785ee7d', 'sub-graph 2', 'openvino -precision=bf16', 'openvino', '2026.4.1', 'hardware-a', 'protocol-1', 'measured', 2.3, 0.01, '[2.1, 2.3, 1e-300, 1.7e+308]', '[0.1, 2.2]', NULL, 3e-07, 0.25, 5000000000, 100.5, 'host-a', 'Conv Relu', 2, 'abababababababababababababababababababababababababababababababab', '{"onnx": "1.23.2"}', '2026-01-01 12:00:02.123456+00', 'abababababababababababababababababababababababababababababababab', 0.30000000000000004);
INSERT INTO public.costs VALUES ('f9bdceed0cecdc6c1da2bbda55f1af66801f1aa121a093207681c1fe049eb10a', 'sub-graph 1', 'openvino -precision=bf16', 'openvino', '2026.4.1', 'hardware-a', 'protocol-1', 'measured', 1.3, 0.01, '[1.1, 1.3, 1e-300, 1.7e+308]', '[0.1, 1.2]', NULL, 3e-07, 0.25, 5000000000, 100.5, 'host-a', 'Conv Relu', 2, 'abababababababababababababababababababababababababababababababab', '{"onnx": "1.23.2"}', '2026-01-01 12:00:01.123456+00', 'abababababababababababababababababababababababababababababababab', 0.30000000000000004);


--
-- Data for Name: gains; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.gains VALUES ('hardware-a', 'cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd', 'mnn, openvino', 0.1, 0.02, '["mnn"]', '2026-01-01 12:00:00.123456+00');


--
-- Data for Name: hardware; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.hardware VALUES ('hardware-a', '{"cpu": "EPYC", "cores": 2, "flags": ["avx512"]}');


--
-- Data for Name: idempotency_keys; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.idempotency_keys VALUES ('a6bd46d88c0e9a3c', 'key-1', '31922b89e98f37e4742b1456122a5b575c74212833692cc8cbc29f474744a673', '73b82b5f148749bf80035a64b6e673e2', '2026-11-29 09:13:52.711186+00');
INSERT INTO public.idempotency_keys VALUES ('a6bd46d88c0e9a3c', 'key-2', 'ad2ad3d5f6eaf22e118a75986de89e8ccdac5520c36b726d0a09141349deaceb', 'cf84b646333d46e5a15a84191039ebd4', '2026-11-29 09:13:52.725591+00');


--
-- Data for Name: job_events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.job_events VALUES ('73b82b5f148749bf80035a64b6e673e2', 1, 'state', '{"state": "queued"}', '2026-11-29 09:13:52.710457+00');
INSERT INTO public.job_events VALUES ('73b82b5f148749bf80035a64b6e673e2', 2, 'state', '{"state": "running", "worker": "worker"}', '2026-11-29 09:13:52.717358+00');
INSERT INTO public.job_events VALUES ('73b82b5f148749bf80035a64b6e673e2', 3, 'progress', '{"done": 1}', '2026-11-29 09:13:52.719831+00');
INSERT INTO public.job_events VALUES ('73b82b5f148749bf80035a64b6e673e2', 4, 'state', '{"state": "done", "reason": null}', '2026-11-29 09:13:52.722236+00');
INSERT INTO public.job_events VALUES ('cf84b646333d46e5a15a84191039ebd4', 1, 'state', '{"state": "queued"}', '2026-11-29 09:13:52.725355+00');


--
-- Data for Name: job_labels; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES (1, '73b82b5f148749bf80035a64b6e673e2', 'a6bd46d88c0e9a3c', 'done', '{"targets": ["openvino"]}', 'efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef', '2026-11-29 09:13:52.705414+00', '2026-11-29 09:13:52.716318+00', '2026-11-29 09:13:52.720127+00', 'worker', 1, NULL, false, 4, '{"done": 1}', NULL, 'efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef', NULL, NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 'tune');
INSERT INTO public.jobs VALUES (2, 'cf84b646333d46e5a15a84191039ebd4', 'a6bd46d88c0e9a3c', 'queued', '{"targets": ["mnn"]}', NULL, '2026-11-29 09:13:52.723164+00', NULL, NULL, NULL, 0, NULL, false, 1, NULL, NULL, NULL, NULL, NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 'tune');


--
-- Data for Name: model_forms; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: models; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.models VALUES (1, 'efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef', 'a6bd46d88c0e9a3c', 'resnet50', '2026-11-29 09:13:52.7026+00');


--
-- Data for Name: observations; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.observations VALUES ('hardware-a', 'mnn', 'abababababababababababababababababababababababababababababababab', '3.6', 'cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd', false, 0.30000000000000004, 1, '[0.5, 20.0]', '2026-01-01 12:00:00.123456+00');


--
-- Data for Name: queue_turns; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.queue_turns VALUES ('a6bd46d88c0e9a3c', 1);


--
-- Data for Name: regions; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: tokens; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.tokens VALUES ('a6bd46d88c0e9a3c', 'team', '7bf529f265ecac092c156d1b78d9ae1d4b4223c38684811b4ab575c9a38ec50a', 'read tune', '2026-11-29 09:13:52.700064+00', NULL, NULL, 3, NULL, NULL, NULL);


--
-- Data for Name: tunings; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.tunings VALUES ('cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd', 'hardware-a', 150, '{}', '{"latency_us": 0.30000000000000004}', '2026-01-01 12:00:00.123456+00');


--
-- Data for Name: watch_runs; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: watches; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Name: jobs_number_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.jobs_number_seq', 2, true);


--
-- Name: models_number_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.models_number_seq', 1, true);


--
-- Name: watch_runs_number_seq; Type: SEQUENCE SET; Schema: public; Owner: -
--

SELECT pg_catalog.setval('public.watch_runs_number_seq', 1, false);


--
-- Name: collage_schema collage_schema_pkc; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.collage_schema
    ADD CONSTRAINT collage_schema_pkc PRIMARY KEY (version_num);


--
-- Name: atlas_cells pk_atlas_cells; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.atlas_cells
    ADD CONSTRAINT pk_atlas_cells PRIMARY KEY (hardware, kind, shape_class, dtype, target);


--
-- Name: atlas_state pk_atlas_state; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.atlas_state
    ADD CONSTRAINT pk_atlas_state PRIMARY KEY (name);


--
-- Name: blobs pk_blobs; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.blobs
    ADD CONSTRAINT pk_blobs PRIMARY KEY (sha256);


--
-- Name: claims pk_claims; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.claims
    ADD CONSTRAINT pk_claims PRIMARY KEY (digest);


--
-- Name: cost_operators pk_cost_operators; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.cost_operators
    ADD CONSTRAINT pk_cost_operators PRIMARY KEY (digest, op_type);


--
-- Name: costs pk_costs; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.costs
    ADD CONSTRAINT pk_costs PRIMARY KEY (digest);


--
-- Name: gains pk_gains; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.gains
    ADD CONSTRAINT pk_gains PRIMARY KEY (hardware, model, targets);


--
-- Name: hardware pk_hardware; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.hardware
    ADD CONSTRAINT pk_hardware PRIMARY KEY (fingerprint);


--
-- Name: idempotency_keys pk_idempotency_keys; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT pk_idempotency_keys PRIMARY KEY (owner, key);


--
-- Name: job_events pk_job_events; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT pk_job_events PRIMARY KEY (job_id, seq);


--
-- Name: job_labels pk_job_labels; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_labels
    ADD CONSTRAINT pk_job_labels PRIMARY KEY (job_id, label);


--
-- Name: jobs pk_jobs; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (number);


--
-- Name: model_forms pk_model_forms; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.model_forms
    ADD CONSTRAINT pk_model_forms PRIMARY KEY (sha256, normalized_sha256);


--
-- Name: models pk_models; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.models
    ADD CONSTRAINT pk_models PRIMARY KEY (number);


--
-- Name: observations pk_observations; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.observations
    ADD CONSTRAINT pk_observations PRIMARY KEY (hardware, target, sub_graph);


--
-- Name: queue_turns pk_queue_turns; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.queue_turns
    ADD CONSTRAINT pk_queue_turns PRIMARY KEY (owner);


--
-- Name: regions pk_regions; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.regions
    ADD CONSTRAINT pk_regions PRIMARY KEY (sub_graph);


--
-- Name: tokens pk_tokens; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT pk_tokens PRIMARY KEY (id);


--
-- Name: tunings pk_tunings; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.tunings
    ADD CONSTRAINT pk_tunings PRIMARY KEY (digest);


--
-- Name: watch_runs pk_watch_runs; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.watch_runs
    ADD CONSTRAINT pk_watch_runs PRIMARY KEY (number);


--
-- Name: watches pk_watches; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.watches
    ADD CONSTRAINT pk_watches PRIMARY KEY (id);


--
-- Name: jobs uq_jobs_id; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT uq_jobs_id UNIQUE (id);


--
-- Name: models uq_models_owner_sha256; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.models
    ADD CONSTRAINT uq_models_owner_sha256 UNIQUE (owner, sha256);


--
-- Name: ix_blobs_created_at; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_blobs_created_at ON public.blobs USING btree (created_at);


--
-- Name: ix_claims_owner; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_claims_owner ON public.claims USING btree (owner);


--
-- Name: ix_cost_operators_op_type_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_cost_operators_op_type_created_at_digest ON public.cost_operators USING btree (op_type, created_at, digest);


--
-- Name: ix_costs_backend_backend_version_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_backend_backend_version_created_at_digest ON public.costs USING btree (backend, backend_version, created_at, digest);


--
-- Name: ix_costs_backend_version_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_backend_version_created_at_digest ON public.costs USING btree (backend_version, created_at, digest);


--
-- Name: ix_costs_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_created_at_digest ON public.costs USING btree (created_at, digest);


--
-- Name: ix_costs_hardware_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_hardware_created_at_digest ON public.costs USING btree (hardware, created_at, digest);


--
-- Name: ix_costs_host_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_host_created_at_digest ON public.costs USING btree (host, created_at, digest);


--
-- Name: ix_costs_model_sha256_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_model_sha256_created_at_digest ON public.costs USING btree (model_sha256, created_at, digest);


--
-- Name: ix_costs_outcome_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_outcome_created_at_digest ON public.costs USING btree (outcome, created_at, digest);


--
-- Name: ix_costs_structure_target; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_structure_target ON public.costs USING btree (structure, target);


--
-- Name: ix_costs_sub_graph; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_sub_graph ON public.costs USING btree (sub_graph);


--
-- Name: ix_costs_target_created_at_digest; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_costs_target_created_at_digest ON public.costs USING btree (target, created_at, digest);


--
-- Name: ix_idempotency_keys_created_at; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_idempotency_keys_created_at ON public.idempotency_keys USING btree (created_at);


--
-- Name: ix_idempotency_keys_job_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_idempotency_keys_job_id ON public.idempotency_keys USING btree (job_id);


--
-- Name: ix_job_labels_label_job_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_job_labels_label_job_id ON public.job_labels USING btree (label, job_id);


--
-- Name: ix_jobs_artifact_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_artifact_sha256 ON public.jobs USING btree (artifact_sha256);


--
-- Name: ix_jobs_inputs_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_inputs_sha256 ON public.jobs USING btree (inputs_sha256);


--
-- Name: ix_jobs_kind_number; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_kind_number ON public.jobs USING btree (kind, number);


--
-- Name: ix_jobs_model_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_model_sha256 ON public.jobs USING btree (model_sha256);


--
-- Name: ix_jobs_owner_number; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_owner_number ON public.jobs USING btree (owner, number);


--
-- Name: ix_jobs_owner_state_number; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_owner_state_number ON public.jobs USING btree (owner, state, number);


--
-- Name: ix_jobs_plan_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_plan_sha256 ON public.jobs USING btree (plan_sha256);


--
-- Name: ix_jobs_report_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_report_sha256 ON public.jobs USING btree (report_sha256);


--
-- Name: ix_jobs_state_lease_until; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_state_lease_until ON public.jobs USING btree (state, lease_until);


--
-- Name: ix_jobs_state_number; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_state_number ON public.jobs USING btree (state, number);


--
-- Name: ix_jobs_webhook_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_webhook_due ON public.jobs USING btree (webhook_due);


--
-- Name: ix_models_owner_number; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_models_owner_number ON public.models USING btree (owner, number);


--
-- Name: ix_models_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_models_sha256 ON public.models USING btree (sha256);


--
-- Name: ix_observations_hardware_edition_created_at; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_observations_hardware_edition_created_at ON public.observations USING btree (hardware, edition, created_at);


--
-- Name: ix_watch_runs_watch_id_number; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_watch_runs_watch_id_number ON public.watch_runs USING btree (watch_id, number);


--
-- Name: ix_watches_artifact_sha256; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_watches_artifact_sha256 ON public.watches USING btree (artifact_sha256);


--
-- Name: ix_watches_due; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_watches_due ON public.watches USING btree (due);


--
-- Name: ix_watches_owner; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_watches_owner ON public.watches USING btree (owner);


--
-- Name: cost_operators fk_cost_operators_digest_costs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.cost_operators
    ADD CONSTRAINT fk_cost_operators_digest_costs FOREIGN KEY (digest) REFERENCES public.costs(digest) ON DELETE CASCADE;


--
-- Name: idempotency_keys fk_idempotency_keys_job_id_jobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT fk_idempotency_keys_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;


--
-- Name: job_events fk_job_events_job_id_jobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT fk_job_events_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;


--
-- Name: job_labels fk_job_labels_job_id_jobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_labels
    ADD CONSTRAINT fk_job_labels_job_id_jobs FOREIGN KEY (job_id) REFERENCES public.jobs(id) ON DELETE CASCADE;


--
-- Name: jobs fk_jobs_artifact_sha256_blobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_artifact_sha256_blobs FOREIGN KEY (artifact_sha256) REFERENCES public.blobs(sha256);


--
-- Name: jobs fk_jobs_model_sha256_blobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_model_sha256_blobs FOREIGN KEY (model_sha256) REFERENCES public.blobs(sha256);


--
-- Name: jobs fk_jobs_plan_sha256_blobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_plan_sha256_blobs FOREIGN KEY (plan_sha256) REFERENCES public.blobs(sha256);


--
-- Name: jobs fk_jobs_report_sha256_blobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT fk_jobs_report_sha256_blobs FOREIGN KEY (report_sha256) REFERENCES public.blobs(sha256);


--
-- Name: models fk_models_sha256_blobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.models
    ADD CONSTRAINT fk_models_sha256_blobs FOREIGN KEY (sha256) REFERENCES public.blobs(sha256);


--
-- Name: watch_runs fk_watch_runs_watch_id_watches; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.watch_runs
    ADD CONSTRAINT fk_watch_runs_watch_id_watches FOREIGN KEY (watch_id) REFERENCES public.watches(id) ON DELETE CASCADE;


--
-- Name: watches fk_watches_artifact_sha256_blobs; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.watches
    ADD CONSTRAINT fk_watches_artifact_sha256_blobs FOREIGN KEY (artifact_sha256) REFERENCES public.blobs(sha256);


--
-- PostgreSQL database dump complete
--


